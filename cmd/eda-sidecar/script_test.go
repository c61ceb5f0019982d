package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

// TestMain makes the test binary the product's binary for scripts, with its own probe and shim.
func TestMain(m *testing.M) {
	cgroup.Child()
	testscript.Main(m, map[string]func(){"eda-sidecar": main})
}

// TestScripts drives the whole program as a user does: real tools, real groups, real files. Each script gets a fresh
// workspace with the counter design; what a script must not leave behind is checked at its end.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("..", "..", "test", "scripts"),
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("TMPDIR", env.WorkDir+"/.tmp")
			env.Defer(func() { leftNothing(t, env.WorkDir) })
			if err := os.MkdirAll(env.WorkDir+"/.tmp", 0o755); err != nil {
				return err
			}
			return exec.Command("cp", "-r", "../../examples/counter/.", env.WorkDir).Run()
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "until": until, "same": same, "tree": tree},
	})
}

// leftNothing fails if a process of a job of this workspace is alive.
func leftNothing(t *testing.T, workspace string) {
	procs, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if cwd, err := os.Readlink(p); err == nil && strings.HasPrefix(cwd, filepath.Join(workspace, ".eda-sidecar")) {
			t.Errorf("%s is alive in %s", p, cwd)
		}
	}
}

// exits runs a command that must end with a status: exits 124 eda-sidecar call ...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if err != nil || neg {
		ts.Fatalf("usage: exits STATUS COMMAND ARG...")
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// until waits until a shell condition holds: until '[ -e x ]'. It is bounded, and fails at its bound.
func until(ts *testscript.TestScript, neg bool, args []string) {
	deadline := time.Now().Add(time.Minute)
	for {
		err := ts.Exec("sh", "-c", args[0])
		if (err == nil) != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("not within a minute: %s", args[0])
		}
	}
}

// same compares two files, or a file and the empty string if the second is missing.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if (ts.ReadFile(args[0]) == ts.ReadFile(args[1])) == neg {
		ts.Fatalf("%s and %s: same is %t", args[0], args[1], neg)
	}
}

// tree prints every file of the workspace with its digest, but for our own directory and .tmp: for comparing.
func tree(ts *testscript.TestScript, neg bool, _ []string) {
	err := ts.Exec("sh", "-c", "find . -path ./.eda-sidecar -prune -o -path ./.tmp -prune -o -type f -exec sha256sum {} + | sort")
	if err != nil || neg {
		ts.Fatalf("%v", err)
	}
}
