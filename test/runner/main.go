// Command runner runs every test of the repository, and believes go test only as far as its event stream carries it:
// go test exits 0 for a mistyped filter, a package without tests, a skipped subtest and a cached result.
//
// It prints one line a package, the output of what failed, the reason of every refusal, and as its last line
// "N passed, N failed". Its exit status is 0 only if everything ran, nothing was skipped, and all passed.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/eda-sidecar/eda-sidecar"

// noTests lists the packages that may have none, by path below the module, with the reason.
var noTests = map[string]string{
	"cgroup/internal/witness": "tested from cgroup, the one package that may mint proofs",
	"cgroup/cgrouptest":       "three constructors for other packages' tests",
}

// noRace lists the packages whose tests run without the race detector, with the reason.
var noRace = map[string]string{
	"test/house":  "one goroutine reads source files; the detector only costs time",
	"test/runner": "one goroutine reads recorded streams",
}

// batch is one go test command: packages of one module that are built alike.
type batch struct {
	dir      string // of the module, relative to the root
	race     bool
	packages []string
}

func main() {
	r := newReport(func(s string) { fmt.Print(s) })
	if err := run(r); err != nil {
		r.refuse("runner", err.Error())
	}
	if !r.close() {
		os.Exit(1)
	}
}

// run tests the main module and the nested one of the linters.
func run(r *report) error {
	if len(os.Args) > 1 {
		return fmt.Errorf("it takes no arguments, got %q: a filtered run proves nothing", os.Args[1:])
	}
	goflags, err := command(".", "env", "GOFLAGS").Output() // also what go env -w has set
	if err != nil {
		return fmt.Errorf("go env GOFLAGS: %w", err)
	}
	if err := checkFlags(strings.TrimSpace(string(goflags))); err != nil {
		return err
	}
	for _, dir := range []string{".", "test/lint"} {
		listed, err := command(dir, "list", "-f", "{{.ImportPath}} {{len .TestGoFiles}} {{len .XTestGoFiles}}", "./...").Output()
		if err != nil {
			return fmt.Errorf("go list in %s: %w", dir, err)
		}
		for _, b := range plan(r, dir, string(listed)) {
			if err := test(r, b); err != nil {
				return fmt.Errorf("go test in %s: %w", dir, err)
			}
		}
	}
	return nil
}

// checkFlags refuses every flag in GOFLAGS that is not known to leave the set of tests, and their checks, as it is.
func checkFlags(goflags string) error {
	for flag := range strings.FieldsSeq(goflags) {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		if !slices.Contains([]string{"buildvcs", "mod", "modcacherw", "trimpath", "p"}, name) {
			return fmt.Errorf("GOFLAGS has %s: unset it, a filtered or altered run proves nothing", flag)
		}
	}
	return nil
}

// plan sorts what go list printed into batches, and refuses packages that have no tests and no excuse.
func plan(r *report, dir, listed string) []batch {
	plain, raced := batch{dir: dir}, batch{dir: dir, race: true}
	for line := range strings.Lines(listed) {
		path, counts, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _ := strings.CutPrefix(path, module+"/")
		switch has, excused := counts != "0 0", noTests[name] != ""; {
		case has && excused:
			r.refuse(path, "is excused from having tests, and has some: drop the excuse")
		case !has && !excused:
			r.refuse(path, "has no tests, and no reason for it")
		case !has:
		case noRace[name] != "" || dir != ".":
			plain.packages = append(plain.packages, path)
		default:
			raced.packages = append(raced.packages, path)
		}
	}
	return slices.DeleteFunc([]batch{plain, raced}, func(b batch) bool { return len(b.packages) == 0 })
}

// test runs one batch, two packages at a time: as many as the machines that this is made for have cores.
func test(r *report, b batch) error {
	args := []string{"test", "-json", "-count=1", "-vet=all", "-p=2", "-timeout=5m", fmt.Sprintf("-race=%t", b.race)}
	cmd := command(b.dir, append(args, b.packages...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.expect(b.packages)
	readErr := r.read(stdout)
	r.settle(b.packages, readErr, cmd.Wait())
	return nil
}

// command is go ARGS in dir, without variables that change what tests do.
func command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GODEBUG=") || strings.HasPrefix(v, "EXPLORE_REPLAY=")
	})
	return cmd
}
