package job

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// TestCommit is the straight way: outputs, state and evidence change together.
func TestCommit(t *testing.T) {
	r := newRig(t, parts{})
	r.write("old", "old\n")
	ok(t, os.Link(filepath.Join(r.dir, "old"), filepath.Join(r.dir, "other")))
	res := r.must(r.sh("cat old > {a}; echo more >> {a}; echo new > {b}; echo said", "a=old", "b=dir/new"))
	if got, want := r.read("old")+r.read("dir/new"), "old\nmore\nnew\n"; got != want {
		t.Errorf("targets: got %q, want %q", got, want)
	}
	r.order(res.Job, committedOrder)
	row, err := r.Session(t.Context(), Who{Name: me}, res.Session)
	ok(t, err)
	if row.Generation != 1 || res.SessionVersion != 1 || row.Job != res.Job {
		t.Errorf("session %+v after a first commit; result says version %d", row, res.SessionVersion)
	}
	if len(res.Outputs) != 2 || res.Outputs[0].Path != "old" || row.State.Artifacts["dir/new"].SHA256 != res.Outputs[1].SHA256 || res.Outputs[1].SHA256 == "" {
		t.Errorf("outputs %+v, artifacts %+v", res.Outputs, row.State.Artifacts)
	}
	if res.Phase != txn.Committed || res.RolledBack || !res.WorkerTerminated || res.Log.Head != "said\n-- sh: exit 0 --\n" {
		t.Errorf("result %+v", res)
	}
	if len(res.Diagnostics) != 1 || !strings.Contains(res.Diagnostics[0].Message, "2 names") {
		t.Errorf("the second name of a target is not mentioned: %+v", res.Diagnostics)
	}
	entries, err := os.ReadDir(filepath.Join(r.dir, ".eda-sidecar", "jobs", res.Job))
	ok(t, err)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"log", "o0", "recovery.json"}; !slices.Equal(left, want) { // o1 was a new name: nothing was displaced
		t.Errorf("its directory holds %q, want %q", left, want)
	}
}

// TestState passes a session's vars from job to job, and no further than the tool declares.
func TestState(t *testing.T) {
	r := newRig(t, parts{})
	row, err := r.OpenSession(t.Context(), me, "work")
	ok(t, err)
	run := func(script string, want Code) Result {
		tool, args, err := adapters.Command([]string{"sh", "-c", script}, nil, true)
		ok(t, err)
		return r.want(Request{Tool: tool, Args: args, Principal: me, Script: true, Session: row.ID}, want)
	}
	first := run(`cat _state.json; echo '{"top":"cpu","n":1}' > _state.next.json`, OK)
	second := run(`cat _state.json; echo '{"n":null}' > _state.next.json`, OK)
	last := run(`cat _state.json; echo '{"n":2' > _state.next.json`, OutputInvalid)
	for _, c := range []struct {
		res  Result
		want string
	}{{first, "{}"}, {second, `{"n":1,"top":"cpu"}`}, {last, `{"top":"cpu"}`}} {
		if got, _, _ := strings.Cut(c.res.Log.Head, "\n"); got != c.want {
			t.Errorf("the tool read %q, want %q", got, c.want)
		}
	}
	row, err = r.Session(t.Context(), Who{Name: me}, row.ID)
	ok(t, err)
	if row.Generation != 3 || len(row.State.Vars) != 1 { // made, and two commits
		t.Errorf("session after one failure: %+v", row)
	}
	tool := newTool(nil, func(adapters.Args) []adapters.Step { return []adapters.Step{script("one", "true")} })
	tool.State = []string{"mine"}
	parse := tool.Parse
	tool.Parse = func(a adapters.Args, run adapters.Run, staged fs.FS) adapters.Report {
		rep := parse(a, run, staged)
		rep.State = json.RawMessage(`{"theirs":1}`)
		return rep
	}
	req := r.with(tool)
	req.Session = row.ID
	if res := r.want(req, OutputInvalid); !strings.Contains(res.Message, session.ErrKey.Error()) {
		t.Errorf("a key that is not declared: %s", res.Message)
	}
}

// TestExitZeroIsNotSuccess runs tools that exit 0 and have not done their work. believed is the control: what becomes of
// the same script where nothing validates.
func TestExitZeroIsNotSuccess(t *testing.T) {
	r := newRig(t, parts{})
	for _, tt := range []struct {
		name, script   string
		format         adapters.Kind
		want, believed Code
	}{
		{"whole", `echo '{"a":1}' > $A`, adapters.KindJSON, OK, OK},
		{"nothing", `true`, adapters.KindFile, OutputInvalid, OK},
		{"empty", `: > $A`, adapters.KindFile, OutputInvalid, OK},
		{"cut_json", `printf '{"a":[1,2' > $A`, adapters.KindJSON, OutputInvalid, OK},
		{"cut_text", `printf 'half a li' > $A`, adapters.KindText, OutputInvalid, OK},
		{"zeroes", `head -c 4096 /dev/zero > $A`, adapters.KindText, OutputInvalid, OK},
		{"other_name", `echo '{"a":1}' > $A.tmp`, adapters.KindJSON, OutputInvalid, OK},
		{"directory", `mkdir $A`, adapters.KindFile, OutputInvalid, OutputInvalid},
		{"fifo", `mkfifo $A`, adapters.KindFile, OutputInvalid, OutputInvalid},
		{"link", `ln -s /etc/passwd $A`, adapters.KindFile, OutputInvalid, OutputInvalid},
		{"second_name", `echo x > $A; ln $A keep`, adapters.KindFile, OutputInvalid, OutputInvalid},
		{"failed", `echo '{"a":1}' > $A; exit 3`, adapters.KindJSON, ToolFailed, ToolFailed},
		{"killed", `echo '{"a":1}' > $A; kill -9 $$`, adapters.KindJSON, ToolFailed, ToolFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			call := func(p adapters.Param, target string) Request {
				p.Name = "a"
				return r.with(newTool([]adapters.Param{p}, func(a adapters.Args) []adapters.Step {
					s := script("one", tt.script)
					s.Env = []string{"A=" + a.Staged("a")}
					return []adapters.Step{s}
				}), target)
			}
			ext := ".out"
			if exts := tt.format.Exts(); len(exts) > 0 {
				ext = exts[0]
			}
			r.write("a"+ext, "old")
			res := r.want(call(output("a", tt.format), "a"+ext), tt.want)
			if got := r.read("a" + ext); (got == "old") != (tt.want != OK) {
				t.Errorf("%s, and the target holds %q", res.Code, got)
			}
			if tt.want != OK {
				r.order(res.Job, failedOrder)
				if !res.RolledBack || res.Phase != txn.RolledBack || len(res.Outputs) > 0 {
					t.Errorf("result %+v", res)
				}
			}
			credulous := output("a", adapters.KindFile)
			credulous.Optional, credulous.AllowEmpty = true, true
			r.want(call(credulous, "b"+ext), tt.believed)
		})
	}
}

// TestMissingOneOfTwo publishes neither of two outputs if one is not there.
func TestMissingOneOfTwo(t *testing.T) {
	r := newRig(t, parts{})
	r.write("a", "old")
	res := r.want(r.sh("echo new > {a}; echo new > {b}; rm {b}", "a=a", "b=b"), OutputInvalid)
	if got := r.read("a") + r.read("b"); got != "old-" {
		t.Errorf("got %q", got)
	}
	r.order(res.Job, failedOrder)
}

// steps runs a tool of these steps, and returns the steps that started.
func steps(t *testing.T, plan ...adapters.Step) (res Result, started []int, r *rig) {
	t.Helper()
	r = newRig(t, parts{groups: hooks{start: func(step int, _ cgroup.Command) error {
		started = append(started, step)
		return nil
	}}})
	r.write("a", "old")
	tool := newTool([]adapters.Param{output("a", adapters.KindFile)}, func(a adapters.Args) []adapters.Step {
		all := slices.Clone(plan)
		for i := range all {
			all[i].Env = []string{"A=" + a.Staged("a")}
		}
		return all
	})
	return r.run(r.with(tool, "a")), started, r
}

// TestSteps runs each step in a group of its own, and none after a failed one.
func TestSteps(t *testing.T) {
	t.Run("all", func(t *testing.T) {
		res, started, r := steps(t, script("one", "setsid sleep 300 & setsid sleep 300 & echo 1 > x"), script("two", "cat x > $A"), script("three", "echo 3 >> $A; exit 5"))
		if res.Code != ToolFailed || len(started) != 3 || r.read("a") != "old" {
			t.Errorf("%s after steps %v, target %q", res.Code, started, r.read("a"))
		}
		if res.DescendantsKilled != 2 {
			t.Errorf("%d descendants killed, want 2", res.DescendantsKilled)
		}
		row, err := r.ledger.Job(t.Context(), res.Job)
		ok(t, err)
		j, err := txn.DecodeJournal(row.Doc)
		ok(t, err)
		inodes := map[uint64]bool{}
		for _, g := range j.Groups {
			inodes[g.Inode] = true
		}
		if len(inodes) != 3 {
			t.Errorf("three steps in %d groups: %+v", len(inodes), j.Groups)
		}
		r.order(res.Job, failedOrder) // one start
		for _, want := range []string{"one", "two", "three"} {
			if !strings.Contains(res.Log.Head, want) {
				t.Errorf("the log does not separate step %q: %q", want, res.Log.Head)
			}
		}
	})
	t.Run("proceed", func(t *testing.T) {
		first := script("one", "echo 1 > x; exit 3")
		first.Proceed = []int{0, 3}
		_, started, _ := steps(t, first, script("two", "cat x > $A"))
		if len(started) != 2 {
			t.Errorf("steps %v, want both: exit 3 may proceed", started)
		}
	})
	for name, first := range map[string]string{"failed": "echo 1 > $A; exit 3", "killed": "echo 1 > $A; kill -9 $$"} {
		t.Run(name, func(t *testing.T) {
			res, started, r := steps(t, script("one", first), script("two", "echo 2 > $A"))
			if res.Code != ToolFailed || len(started) != 1 || r.read("a") != "old" {
				t.Errorf("%s after steps %v, target %q", res.Code, started, r.read("a"))
			}
			r.order(res.Job, failedOrder)
		})
	}
}

// TestMakesCheckedBetweenSteps starts no step on a product that is not whole. The control does not say what is made.
func TestMakesCheckedBetweenSteps(t *testing.T) {
	torn := script("one", `printf '{"a":' > x.json`)
	next := script("two", "cp x.json $A")
	_, started, r := steps(t, torn, next)
	if len(started) != 2 || r.read("a") == "old" {
		t.Fatalf("control: steps %v, target %q: the check below would pass by luck", started, r.read("a"))
	}
	torn.Makes = []adapters.Product{{Path: "x.json", Kind: adapters.KindJSON}}
	res, started, r := steps(t, torn, next)
	if res.Code != OutputInvalid || len(started) != 1 || r.read("a") != "old" {
		t.Errorf("%s (%s) after steps %v, target %q", res.Code, res.Message, started, r.read("a"))
	}
	r.order(res.Job, failedOrder)
}

// TestLinger gives a child that its leader left behind a second, then kills it: the call has succeeded all the same.
func TestLinger(t *testing.T) {
	r := newRig(t, parts{})
	res := r.must(r.sh("setsid sleep 300 & echo new > {a}", "a=a"))
	if res.DescendantsKilled != 1 || !res.WorkerTerminated || r.read("a") != "new\n" {
		t.Errorf("result %+v, target %q", res, r.read("a"))
	}
	r.order(res.Job, committedOrder)
}

// TestDeadlineOfTheGroup has the leader exit at once while a child lives on beyond the deadline. The control takes the
// leader's exit for the end.
func TestDeadlineOfTheGroup(t *testing.T) {
	finding := func(h hooks) string {
		r := newRig(t, parts{groups: h})
		r.write("a", "old")
		req := r.sh("setsid sleep 300 & echo new > {a}", "a=a")
		req.Timeout = 200 * time.Millisecond // less than the linger
		res := r.run(req)
		if res.Code != ToolTimeout || r.read("a") != "old" || r.kinds(res.Job) != timeoutOrder {
			return string(res.Code) + " " + r.read("a") + " " + r.kinds(res.Job)
		}
		return ""
	}
	leader := hooks{wait: func(_ context.Context, p *cgroup.Process) (cgroup.Exit, error) {
		until(t, "the leader's exit", func() bool { return !alive(p.PID()) })
		over, cancel := context.WithCancel(context.Background())
		cancel()
		exit, _ := p.Wait(over) // at once
		return exit, nil
	}}
	if finding(leader) == "" {
		t.Error("control: a deadline that ends with the leader was not noticed")
	}
	if got := finding(hooks{}); got != "" {
		t.Errorf("got %s, want %s, the old target, and %s", got, ToolTimeout, timeoutOrder)
	}
}

// TestEnvironment looks at what a tool gets: these variables, arguments, descriptors, this directory, and no others.
func TestEnvironment(t *testing.T) {
	t.Setenv("AWS_SECRET", "ours")
	r := newRig(t, parts{o: Options{Path: "/usr/bin:/bin", PassEnv: []string{"LM_LICENSE_FILE=27000@host", "LM_OTHER=1", "TOKEN=secret"}}})
	tool := newTool([]adapters.Param{output("a", adapters.KindFile)}, func(a adapters.Args) []adapters.Step {
		env := adapters.Step{Name: "env", Argv: []string{"env"}, Env: []string{"OWN=1"}}
		look := script("look", `tr '\0' ' ' < /proc/self/cmdline; echo; readlink /proc/self/fd/0; readlink /proc/self/cwd; ls /proc/self/fd | tr '\n' ' '; umask`)
		args := adapters.Step{Name: "args", Argv: []string{"cat", "/proc/self/cmdline"}}
		out := script("out", "echo x > $A")
		out.Env = []string{"A=" + a.Staged("a")}
		return []adapters.Step{env, look, args, out}
	})
	tool.PassEnv = []string{"LM_LICENSE_FILE", "LM_MISSING", "LM"}
	for _, key := range []string{"env", "cat"} {
		tool.Programs = append(tool.Programs, adapters.Program{Key: key, Names: []string{key}})
	}
	res := r.must(r.with(tool, "a"))
	text := r.read(res.Log.Path) // raw: in a result paths are those that the caller knows
	parts := strings.Split(text, "\n")
	dir := filepath.Join(r.dir, filepath.Dir(res.Log.Path))
	want := append(cgroup.BaseEnv(dir+"/tmp", "/usr/bin:/bin"), "QT_QPA_PLATFORM=offscreen", "LM_LICENSE_FILE=27000@host", "OWN=1")
	slices.Sort(want)
	got := slices.Sorted(slices.Values(parts[:min(len(want), len(parts))]))
	if !slices.Equal(got, want) || strings.Contains(text, "secret") || strings.Contains(text, "AWS") {
		t.Errorf("environment: got\n%s\nwant\n%s", text, strings.Join(want, "\n"))
	}
	rest := strings.Join(parts[len(want):], "\n")
	for _, want := range []string{"\n/dev/null\n", "\n" + dir + "/work\n", "\n0 1 2 3 0022\n", "/usr/bin/cat\x00/proc/self/cmdline\x00"} { // 3 is the listing's own
		if !strings.Contains(rest, want) {
			t.Errorf("want %q in\n%s", want, rest)
		}
	}
	if strings.Contains(res.Log.Head, r.dir) {
		t.Errorf("the result names a path that the caller does not know:\n%s", res.Log.Head)
	}
}

// TestPanics lets each function of an adapter panic: that call fails, is undone, and the next one runs.
func TestPanics(t *testing.T) {
	for name, spoil := range map[string]func(*adapters.Tool){
		"plan":     func(t *adapters.Tool) { t.Plan = func(adapters.Args) (adapters.Invocation, error) { panic("plan") } },
		"progress": func(t *adapters.Tool) { t.Progress = func([]byte) (adapters.Progress, bool) { panic("progress") } },
		"validate": func(t *adapters.Tool) { t.Validate = func(adapters.Args, fs.FS) []adapters.Fault { panic("validate") } },
		"parse": func(t *adapters.Tool) {
			t.Parse = func(adapters.Args, adapters.Run, fs.FS) adapters.Report { panic("parse") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, parts{})
			r.write("a", "old")
			good := func() *adapters.Tool {
				return newTool([]adapters.Param{output("a", adapters.KindFile)}, func(a adapters.Args) []adapters.Step {
					s := script("one", "echo 50%; echo new > $A")
					s.Env = []string{"A=" + a.Staged("a")}
					return []adapters.Step{s}
				})
			}
			bad := good()
			spoil(bad)
			req := r.with(bad, "a")
			req.Progress = func(adapters.Progress) {}
			res := r.want(req, Internal)
			want := failedOrder
			if name == "plan" {
				want = "deny"
			}
			r.order(res.Job, want)
			if r.read("a") != "old" || len(r.jobs()) > 0 || !strings.Contains(res.Message, name) {
				t.Errorf("target %q, jobs %v, message %q", r.read("a"), r.jobs(), res.Message)
			}
			r.must(r.with(good(), "a"))
		})
	}
}

// TestProgress passes what an adapter makes of lines to the caller.
func TestProgress(t *testing.T) {
	r := newRig(t, parts{})
	tool := newTool(nil, func(adapters.Args) []adapters.Step { return []adapters.Step{script("one", "echo half")} })
	tool.Progress = func(line []byte) (adapters.Progress, bool) {
		return adapters.Progress{Percent: 50}, string(line) == "half"
	}
	var heard []adapters.Progress
	req := r.with(tool)
	req.Progress = func(p adapters.Progress) { heard = append(heard, p) }
	r.must(req)
	if len(heard) != 1 || heard[0].Percent != 50 {
		t.Errorf("heard %+v", heard)
	}
}
