package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// TestManyProcesses: however many processes want one workspace, one has it at a time, and each commit counts once (G5).
func TestManyProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("build/a.v", "0\n")
	w.recovered() // the first start makes the directories
	const workers, each = 3, 4
	var wg sync.WaitGroup
	refused, failures := make(chan int, workers), make(chan string, workers)
	path, err := program()
	ok(t, err)
	for i := range workers {
		wg.Go(func() {
			busy, deadline := 0, time.Now().Add(30*time.Second)
			for done := 0; done < each && time.Now().Before(deadline); {
				args := append([]string{"-c", `exec "$0" "$@"`, path}, w.shArgs(fmt.Sprintf("n=$(cat build/a.v); echo $((n+1)) >{x}; echo %d >{y}", i), "x=build/a.v", "y=build/b.v")...)
				r := w.other("sh", args...)
				switch err := r.cmd.Run(); {
				case err == nil:
					done++
				case r.cmd.ProcessState.ExitCode() == exitRetry:
					busy++
					<-time.After(10 * time.Millisecond)
				default:
					failures <- fmt.Sprintf("%v: %s %s", err, &r.out, &r.err)
					return
				}
			}
			refused <- busy
		})
	}
	wg.Wait()
	close(refused)
	close(failures)
	for f := range failures {
		t.Error(f)
	}
	busy := 0
	for n := range refused {
		busy += n
	}
	t.Logf("NOTE %d commits, %d refusals", workers*each, busy)
	if busy == 0 {
		t.Error("nobody was ever refused: the case is void")
	}
	w.is("build/a.v", fmt.Sprintln(workers*each)) // a lost update would be missing
	if a := w.sh("true", "--session=default"); a.SessionVersion != workers*each+1 {
		t.Errorf("version %d", a.SessionVersion)
	}
	w.sound()
}

// TestKilledAtRandom kills the program at any time, with fugitives among its tools, and goes on by the next call: what was
// acknowledged is there, what was not is whole, and at the end nothing is left.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("NOTE seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // timing, no secret
	w := newWorld(t)
	state, acknowledged, killed := "old\n", 0, 0
	for i := range 24 {
		next := fmt.Sprintf("%d\n", i)
		script := fmt.Sprintf("echo %d >{x}; echo %d >{y}; ", i, i)
		if i%3 == 0 {
			script += "setsid sh -c 'while :; do echo late >>{x}; sleep 0.01; done' & sleep 0.05; "
		}
		r := w.command(nil, w.shArgs(script+"true", "x=build/a.v", "y=build/b.v")...).start()
		if i%4 != 3 {
			timer := time.AfterFunc(time.Duration(random.IntN(120))*time.Millisecond, func() { _ = r.cmd.Process.Kill() }) // it may have ended
			defer timer.Stop()
		}
		a := r.wait()
		got := w.read("build/b.v")
		switch {
		case a.exit == -1:
			killed++
		case a.exit != exitOK || got != next:
			t.Fatalf("call %d: %v, b.v holds %q", i, a, got)
		default:
			acknowledged++
		}
		if got != state && got != next {
			t.Fatalf("call %d: b.v holds %q, want %q or %q", i, got, state, next)
		}
		if a.exit == -1 {
			w.recovered()
			if left := w.marked(); len(left) > 0 {
				t.Fatalf("call %d: alive after recovery: %q", i, left)
			}
			got = w.read("build/b.v")
		}
		if x := w.read("build/a.v"); !strings.HasPrefix(x, got) {
			t.Fatalf("call %d: a.v holds %q, b.v %q", i, short(x), got)
		}
		state = got
	}
	t.Logf("NOTE %d acknowledged, %d killed", acknowledged, killed)
	if killed < 3 || acknowledged < 3 {
		t.Errorf("%d acknowledged, %d killed: the case is void", acknowledged, killed)
	}
	w.sound()
}

// TestServerTellsOfLateBytes: a server that lets a backup expire logs that somebody wrote into it, and doctor warns beside it.
func TestServerTellsOfLateBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serving("backup_retention: 1s")
	s := w.serve()
	f, err := os.OpenFile(w.path("build/a.v"), os.O_WRONLY|os.O_APPEND, 0)
	ok(t, err)
	c := s.connect(nil)
	a := s.must(c, "sh_run", w.script(s.session(c, "s"), "echo new >$1", "build/a.v"))
	_, err = f.WriteString("late\n")
	ok(t, errors.Join(err, f.Close()))
	w.until("the backup expires", func() bool { return len(w.list(".eda-sidecar/conflicts")) > 0 })
	w.until("the server says so", func() bool { return strings.Contains(s.log.String(), "conflicts/"+a.Job) })
	if d := w.do("doctor"); d.exit != exitOK || !strings.Contains(d.out, "conflicts/"+a.Job) {
		t.Errorf("doctor: %v", d)
	}
	if wrong := s.log.wrong(); wrong != "" {
		t.Errorf("the log has the key %s", wrong)
	}
	if exit := s.stop(); exit != exitOK {
		t.Errorf("exit %d: %s", exit, s.log)
	}
}

// TestLateWriterOfTheOld: bytes that somebody writes into a displaced original, through a descriptor of before, are not
// lost with the backup. The control writes nothing, and the backup goes.
func TestLateWriterOfTheOld(t *testing.T) {
	t.Parallel()
	for _, writes := range []bool{true, false} {
		w := newWorld(t)
		w.config("backup_retention: 1ms")
		f, err := os.OpenFile(w.path("build/a.v"), os.O_WRONLY|os.O_APPEND, 0)
		ok(t, err)
		a := w.sh("echo new >{x}", "x=build/a.v")
		w.want(a, exitOK, job.OK)
		if writes {
			_, err = f.WriteString("late\n")
			ok(t, err)
		}
		ok(t, f.Close())
		for _, args := range [][]string{{"--dry-run"}, nil} { // it says what it does
			r := w.recovered(args...)
			if writes != (len(r) == 1) || writes && (r[0].Job != a.Job || r[0].Resolution != txn.Conflicted || !strings.Contains(r[0].Reason, "conflicts/"+a.Job)) {
				t.Errorf("writes %t: recover %q says %+v", writes, args, r)
			}
		}
		if d := w.do("doctor"); d.exit != exitOK || strings.Contains(d.out, "conflicts/"+a.Job) != writes {
			t.Errorf("writes %t: doctor: %v", writes, d)
		}
		w.is("build/a.v", "new\n")
		if slices.Contains(w.list(".eda-sidecar/jobs"), a.Job) {
			t.Errorf("writes %t: the backup is still in jobs/", writes)
		}
		kept := w.list(".eda-sidecar/conflicts")
		if !writes {
			if len(kept) > 0 {
				t.Errorf("control: conflicts holds %q", kept)
			}
			w.sound()
			continue
		}
		w.is(".eda-sidecar/conflicts/"+a.Job+"/0", "old\nlate\n")
		if why := w.read(".eda-sidecar/conflicts/" + a.Job + "/why.json"); !strings.Contains(why, "build/a.v") {
			t.Errorf("why.json: %s", why)
		}
	}
}
