package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// fugitives are trees that get out of the reach of signals to a leader or to its process group. Each leaves at least
// one process that writes on into the staged output.
func fugitives() map[string]string {
	const scribble = `while :; do echo late >>{x}; sleep 0.01; done`
	storm := `echo early >{x}; python3 -c '
import os, sys, time
for _ in range(7):
    os.fork()
    os.setsid() if os.getpgrp() != os.getpid() else None
open("../s0/count", "a").write("x\n")
time.sleep(1000)' & while [ $(wc -l <../s0/count 2>/dev/null || echo 0) -lt 128 ]; do sleep 0.02; done`
	return map[string]string{
		"setsid":       `setsid sh -c '` + scribble + `' & until [ -s {x} ]; do sleep 0.01; done`,
		"double_fork":  `(setsid sh -c '(` + scribble + `) &' &); until [ -s {x} ]; do sleep 0.01; done`,
		"fork_storm":   storm,
		"term_ignored": `setsid sh -c 'trap "" TERM INT HUP; ` + scribble + `' & until [ -s {x} ]; do sleep 0.01; done`,
		"stopped":      `setsid sh -c 'echo early >{x}; kill -STOP $$; ` + scribble + `' & until [ -s {x} ]; do sleep 0.01; done`,
	}
}

// TestNothingOutlivesTheAnswer: whatever a tool starts is dead when its call is answered, after exit 0 as after a time-out, and
// writes no more (G1).
func TestNothingOutlivesTheAnswer(t *testing.T) {
	for name, script := range fugitives() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.config("grace: 200ms")

			a := w.sh(script+"; exit 0", "x=build/a.v")
			if left := w.marked(); len(left) > 0 {
				t.Fatalf("alive after the answer: %q", left)
			}
			w.want(a, exitOK, job.OK)
			w.ordered(a.Job, "allow", "start", "commit")
			sum := sha256.Sum256([]byte(w.read("build/a.v")))
			if len(a.Outputs) != 1 || a.Outputs[0].SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("the target is not what was judged: %+v", a.Outputs)
			}
			if want := map[string]int{"fork_storm": 128}[name]; a.DescendantsKilled < max(want, 1) || !a.WorkerTerminated {
				t.Errorf("%d descendants killed, terminated %t", a.DescendantsKilled, a.WorkerTerminated)
			}
			before := w.read("build/a.v")

			a = w.sh(script+"; sleep 1000", "x=build/a.v", "--timeout=700ms")
			if left := w.marked(); len(left) > 0 {
				t.Fatalf("alive after the answer: %q", left)
			}
			w.want(a, exitTimeout, job.ToolTimeout)
			if !a.RolledBack || !a.WorkerTerminated {
				t.Errorf("rolled back %t, terminated %t", a.RolledBack, a.WorkerTerminated)
			}
			w.ordered(a.Job, "allow", "start", "timeout", "worker_terminated", "rollback")
			<-time.After(50 * time.Millisecond) // a writer that had survived would write five times
			w.is("build/a.v", before)
			w.sound()
		})
	}
}

// TestFugitivesAreReal is the control: with a kill of the process group, as others do it, every tree leaves survivors. So
// the tests above mean something.
func TestFugitivesAreReal(t *testing.T) {
	for name, script := range fugitives() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if left := w.outside(script); len(left) == 0 {
				t.Error("control: a kill of the process group leaves no survivor, so the tree does not flee")
			}
		})
	}
}

// outside runs a script as a plain child, kills its process group when it ends, and returns who is still alive. Then it
// ends them all, by their mark.
func (w *world) outside(script string) []string {
	w.t.Helper()
	ok(w.t, os.MkdirAll(w.path("s0"), 0o755))
	ok(w.t, os.MkdirAll(w.path("work"), 0o755))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-c", "export MARK="+w.mark+"; "+strings.ReplaceAll(script, "{x}", "../s0/out.v"))
	c.Dir, c.SysProcAttr = w.path("work"), &syscall.SysProcAttr{Setpgid: true}
	ok(w.t, c.Run())
	if err := unix.Kill(-c.Process.Pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		w.t.Fatal(err)
	}
	alive := w.marked()
	w.until("death", func() bool {
		left := w.markedPIDs()
		for _, pid := range left {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				w.t.Fatal(err)
			}
		}
		return len(left) == 0
	})
	return alive
}
