package adapters

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// rig is a workspace with one job directory in it, arranged as the engine does: links in work/, slots beside it.
type rig struct {
	t       *testing.T
	ws, job string
	inv     Invocation
	run     Run
	args    Args
	argv    func([]string) []string // changes a step's argv: the controls' seam
	makes   func(Invocation, int, fs.FS) []Fault
}

// newRig copies directories of the repository into a workspace and adds files.
func newRig(t *testing.T, dir string, files map[string]string) *rig {
	t.Helper()
	ws, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if dir != "" {
		if err := os.CopyFS(ws, os.DirFS(filepath.Join("..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write(t, filepath.Join(ws, name), text)
	}
	return &rig{t: t, ws: ws, job: filepath.Join(ws, ".eda-sidecar/jobs/0197a"), makes: Invocation.CheckMakes}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// tool returns a built-in tool.
func tool(t *testing.T, name string) *Tool {
	t.Helper()
	c, err := NewCatalog()
	if err != nil {
		t.Fatal(err)
	}
	found, hint := c.Tool(name)
	if found == nil {
		t.Fatalf("no tool %q; %s", name, hint)
	}
	return found
}

// decode turns a JSON object into arguments with slots.
func decode(t *testing.T, tl *Tool, args string) (Args, error) {
	t.Helper()
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(args), &raw); err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	a, err := tl.Decode(raw)
	return bind(a), err
}

// bind gives the outputs the slots that the engine's transaction would: the target's extension if it is plain.
func bind(a Args) Args {
	var slots []string
	for _, o := range a.Outputs() {
		ext := filepath.Ext(o.Target)
		if !plainName.MatchString(strings.TrimPrefix(ext, ".")) {
			ext = ""
		}
		slots = append(slots, "../s"+string(rune('0'+o.Index))+"/out"+ext)
	}
	return a.Bind(slots)
}

// call runs the tool with the real programs and judges it.
func (r *rig) call(tl *Tool, args string) (Report, []Fault) {
	r.t.Helper()
	a, err := decode(r.t, tl, args)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.execute(tl, a)
}

func (r *rig) execute(tl *Tool, a Args) (Report, []Fault) {
	t := r.t
	t.Helper()
	inv, err := tl.Prepare(a)
	if err != nil {
		t.Fatal(err)
	}
	r.args, r.inv = a, inv
	r.prepare(a, inv)
	logPath := filepath.Join(r.job, "log")
	log, err := os.Create(logPath)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range inv.Steps {
		exit := r.step(s, log)
		r.run.Exits = append(r.run.Exits, exit)
		if _, err := log.WriteString(exit.Separator()); err != nil {
			t.Fatal(err)
		}
		if exit.Failed(s) || len(r.makes(inv, i, os.DirFS(r.job))) > 0 {
			break
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range inv.Collect {
		err := os.Rename(filepath.Join(r.job, "work", c.From), filepath.Join(r.job, jobPath(a.Staged(c.Output))))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	r.run.Log = func() (io.ReadCloser, error) { return os.Open(logPath) }
	r.run.Map = NewMapper(a, r.job, r.ws)
	return tl.Judge(a, inv, r.run, os.DirFS(r.job))
}

// prepare makes the job directory: links of the view, slots, driver scripts.
func (r *rig) prepare(a Args, inv Invocation) {
	var errs []error
	for _, dir := range []string{"work", "tmp", "s0", "s1", "s2", "s3"} {
		errs = append(errs, os.MkdirAll(filepath.Join(r.job, dir), 0o755))
	}
	for _, link := range a.Links() {
		errs = append(errs, os.Symlink("../../../../"+link, filepath.Join(r.job, "work", link)))
	}
	for _, f := range inv.Files {
		errs = append(errs, os.WriteFile(filepath.Join(r.job, "work", f.Name), []byte(f.Content), 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) step(s Step, log *os.File) StepExit {
	argv := s.Argv
	if r.argv != nil {
		argv = r.argv(argv)
	}
	ctx, cancel := contextFor(r.t, 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = filepath.Join(r.job, "work")
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + r.job + "/tmp", "TMPDIR=" + r.job + "/tmp", "LC_ALL=C.UTF-8", "TZ=UTC"}, s.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		r.t.Fatal(err)
	}
	end, err := log.Seek(0, io.SeekCurrent)
	if err != nil {
		r.t.Fatal(err)
	}
	return StepExit{Name: s.Name, Code: cmd.ProcessState.ExitCode(), LogEnd: end}
}

// golden compares v, as JSON, with testdata/golden/name.json.
func golden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "golden", name+".json")
	if *update {
		write(t, file, string(got)+"\n")
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(bytes.TrimSpace(want)), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", file, diff)
	}
}
