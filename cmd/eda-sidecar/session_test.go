package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// TestSession: session state and outputs change together, or neither does (G2).
func TestSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const session = "--session=s"
	version := int64(1) // made by the first run
	// committed fails unless a run in the session committed, which raises its version by one.
	committed := func(a answer) {
		t.Helper()
		w.want(a, exitOK, job.OK)
		if version++; a.SessionVersion != version {
			t.Errorf("version %d, want %d", a.SessionVersion, version)
		}
	}
	// sees runs a tool that prints the state, and compares it.
	sees := func(want string) {
		t.Helper()
		a := w.sh("cat _state.json", session)
		committed(a)
		if got, _, _ := strings.Cut(a.Log.Head, "--"); strings.TrimSpace(got) != want {
			t.Errorf("the tool sees %q, want %q", got, want)
		}
	}
	sees("{}")
	a := w.sh(`echo '{"n": 1, "deep": {"k": [1]}}' >_state.next.json; echo one >{x}`, session, "x=build/a.v")
	committed(a)
	if len(a.Undeclared) > 0 {
		t.Errorf("undeclared: %q", a.Undeclared)
	}
	w.is("build/a.v", "one\n")
	state := `{"deep":{"k":[1]},"n":1}`
	sees(state)

	// What it reads is a clone: writing that changes nothing.
	committed(w.sh(`chmod 644 _state.json; echo '{"n": 9}' >_state.json`, session))
	sees(state)

	// Who writes both and fails, hangs or is not whole has changed neither.
	const both = `echo '{"n": 2}' >_state.next.json; echo two >{x}; `
	for what, c := range map[string]struct {
		script string
		exit   int
		code   job.Code
	}{
		"fails":             {both + "exit 3", exitFailed, job.ToolFailed},
		"hangs":             {both + "sleep 1000", exitTimeout, job.ToolTimeout},
		"empty output":      {both + ": >{x}", exitFailed, job.OutputInvalid},
		"no output":         {both + "rm {x}", exitFailed, job.OutputInvalid},
		"cut state":         {both + `echo '{"n":' >_state.next.json`, exitFailed, job.OutputInvalid},
		"state of no keys":  {both + `echo '[2]' >_state.next.json`, exitFailed, job.OutputInvalid},
		"doubled key":       {both + `echo '{"n": 2, "n": 3}' >_state.next.json`, exitFailed, job.OutputInvalid},
		"too large":         {both + `(printf '{"n": "'; head -c 100000 /dev/zero | tr '\0' x; printf '"}') >_state.next.json`, exitFailed, job.OutputInvalid},
		"too many keys":     {both + `python3 -c 'import json; print(json.dumps({"k%d" % i: i for i in range(300)}))' >_state.next.json`, exitFailed, job.OutputInvalid},
		"directory":         {both + "rm _state.next.json; mkdir _state.next.json", exitFailed, job.OutputInvalid},
		"empty state":       {both + ": >_state.next.json", exitFailed, job.OutputInvalid},
		"text behind state": {both + "echo more >>_state.next.json", exitFailed, job.OutputInvalid},
	} {
		a := w.sh(c.script, session, "x=build/a.v", "--timeout=2s")
		if a.exit != c.exit || a.Code != c.code || !a.RolledBack || a.SessionVersion != version {
			t.Errorf("%s: %v", what, a)
		}
		w.is("build/a.v", "one\n")
	}
	sees(state)
	// The same tool, without a fault.
	committed(w.sh(both, session, "x=build/a.v"))
	w.is("build/a.v", "two\n")
	sees(`{"deep":{"k":[1]},"n":2}`)
	// null takes a key away, the others stay.
	committed(w.sh(`echo '{"n": null}' >_state.next.json`, session))
	sees(`{"deep":{"k":[1]}}`)

	// Another session knows nothing of it, a run without one has none, and no id is a name.
	if a := w.sh("cat _state.json", "--session=other"); a.Code != job.OK || !strings.HasPrefix(a.Log.Head, "{}") || a.SessionVersion != 2 {
		t.Errorf("another session: %v", a)
	}
	w.want(w.sh("cat _state.json"), exitFailed, job.ToolFailed)
	for _, id := range []string{"s", "nosuch"} {
		a := w.do("call", "--json", "--session", id, "yosys_synth", `sources:=["build/b.v"]`, "top=b", "netlist=build/b.json")
		w.want(a, exitUsage, job.SessionNotFound)
		w.ordered(a.Job, "deny")
	}
	w.sound()
}

// TestSessionKilled kills a run of a session between publication and commit: neither output nor state has changed, and
// after the commit both have.
func TestSessionKilled(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		w := newWorld(t)
		w.want(w.sh(`echo '{"n": 1}' >_state.next.json; echo one >{x}`, "--session=s", "x=build/a.v"), exitOK, job.OK)
		ok(t, os.Mkdir(w.path("ctl"), 0o755))
		r := w.command(nil, w.shArgs(`echo '{"n": 2}' >_state.next.json; echo two >{x}; until [ -e ctl/go ]; do sleep 0.01; done`, "--session=s", "x=build/a.v")...)
		out, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
		ok(t, err)
		r.cmd.Stdout = out
		r.start()
		w.until("staging", w.staged)
		at := []string{"-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=1", "-P", w.path("build")}
		if late { // the answer
			at = []string{"-o", "/dev/null", "-e", "trace=write", "-e", "inject=write:signal=KILL:when=1", "-P", out.Name()}
		}
		detached := w.attach(r, at...)
		w.write("ctl/go", "")
		if a := r.wait(); a.exit != -1 {
			t.Fatalf("not killed: %v", a)
		}
		detached()
		ok(t, out.Close())
		w.recovered()
		n, text := 1, "one\n"
		if late {
			n, text = 2, "two\n"
		}
		w.is("build/a.v", text)
		if a := w.sh("cat _state.json", "--session=s"); !strings.HasPrefix(a.Log.Head, fmt.Sprintf(`{"n":%d}`, n)) || a.SessionVersion != int64(n)+2 {
			t.Errorf("late %t: version %d, state %q", late, a.SessionVersion, a.Log.Head)
		}
		w.sound()
	}
}
