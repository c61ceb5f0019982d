package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// three writes two targets that exist and a new one in a directory that does not. Before it ends it waits for the file
// go in ctl/, if that directory is there.
const three = `echo new >{x}; echo new >{y}; echo new >{z}; until [ ! -d ctl ] || [ -e ctl/go ]; do sleep 0.01; done`

var threeOuts = []string{"x=build/a.v", "y=build/b.v", "z=new/c.v"}

// traced runs three under strace from the program's first system call on. Counts of strace's when= are per thread.
func (w *world) traced(inject string) answer {
	w.t.Helper()
	call, _, _ := strings.Cut(inject, ":")
	r := w.command([]string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e", "inject=" + inject},
		w.shArgs(three, threeOuts...)...)
	r.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	return r.start().wait()
}

// attached runs three, and strace from the moment on when the tool has written everything: what is counted is
// inspection, publication, commit and end. options go to strace.
func (w *world) attached(options ...string) answer {
	w.t.Helper()
	ok(w.t, os.MkdirAll(w.path("ctl"), 0o755))
	ok(w.t, os.RemoveAll(w.path("ctl/go")))
	r := w.command(nil, w.shArgs(three, threeOuts...)...)
	r.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	r.start()
	w.until("staging", func() bool {
		found, err := filepath.Glob(w.path(".eda-sidecar/jobs/*/s2/out.v"))
		ok(w.t, err)
		return len(found) == 1
	})
	detached := w.attach(r, options...)
	w.write("ctl/go", "")
	defer detached()
	return r.wait()
}

// attach lets strace follow every thread of a running program. strace ends with it, which detached waits for.
func (w *world) attach(r *running, options ...string) (detached func() answer) {
	w.t.Helper()
	s := w.other("strace", append([]string{"-f", "-qq", "-p", strconv.Itoa(r.pid())}, options...)...).start()
	w.until("strace to attach", func() bool {
		all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", r.pid()))
		ok(w.t, err)
		return len(all) > 0 && !slices.ContainsFunc(all, func(file string) bool {
			status, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(status), "TracerPid:\t0\n")
		})
	})
	return s.wait
}

// aftermath holds a workspace in which three was killed, or failed, against everything that is promised, and returns
// whether it is new. Before recovery no target is missing or partial; after it all are old or all are new, as the ledger says.
func (w *world) aftermath(a answer) bool {
	w.t.Helper()
	for _, f := range []string{"build/a.v", "build/b.v"} {
		if got := w.read(f); got != "old\n" && got != "new\n" {
			w.t.Errorf("before recovery %s holds %q", f, got)
		}
	}
	found := w.recovered()
	trail := w.trail("")
	committed := slices.ContainsFunc(trail, func(e event) bool { return e.Type == "io.eda-sidecar.commit" })
	if committed {
		w.is("build/a.v", "new\n", "build/b.v", "new\n", "new/c.v", "new\n")
	} else {
		w.is("build/a.v", "old\n", "build/b.v", "old\n", "new/c.v", "absent")
		if _, err := os.Lstat(w.path("new")); !os.IsNotExist(err) {
			w.t.Errorf("a directory that was made is left: %v", err)
		}
	}
	for _, r := range found {
		if r.Resolution != "discarded" && r.Resolution != "rolled_back" && r.Resolution != "rolled_forward" {
			w.t.Errorf("recovery: %+v", r)
		}
	}
	switch {
	case a.Code == job.OK && !committed:
		w.t.Error("acknowledged, and lost")
	case a.Code != job.OK && a.Code != "" && a.Code != "CUT" && a.RolledBack && committed:
		w.t.Errorf("rolled back, and committed: %v", a)
	}
	w.soundAfter(trail)
	return committed
}

// TestKilledAnywhere kills the program at the Nth call of each system call that matters, in start-up and while it
// publishes, until N is beyond the last: recovery makes all old or all new, as the ledger says (G2, G9).
func TestKilledAnywhere(t *testing.T) {
	var fired, old, committed, mixed atomic.Int32
	t.Run("sweep", func(t *testing.T) {
		for _, c := range []struct {
			call, on     string // on this path alone; empty: on any
			late         bool   // from the end of the tool on
			stride, want int    // how many points must fire; threads share the calls, so it is fewer than there are calls
		}{
			{"renameat2", "", true, 1, 4},
			{"renameat2", "build", true, 1, 2}, // the exchanges
			{"renameat2", "new", true, 1, 1},
			{"mkdirat", "", true, 1, 1},
			{"fsync", "", true, 1, 3},
			{"fsync", "build", true, 1, 1}, // between publication and commit
			{"fsync", ".eda-sidecar/state/ledger.db-wal", true, 1, 1},
			{"unlinkat", "", true, 1, 1},
			{"write", "", true, 1, 2}, // the answer is one
			{"pwrite64", "", true, 4, 4},
			{"renameat2", "", false, 2, 2},
			{"fsync", "", false, 3, 1},
			{"mkdirat", "", false, 2, 2},
			{"unlinkat", "", false, 2, 1},
			{"clone3", "", false, 1, 1},
			{"pwrite64", "", false, 7, 4},
		} {
			t.Run(fmt.Sprintf("%s/late=%t/%s", c.call, c.late, filepath.Base(c.on)), func(t *testing.T) {
				t.Parallel()
				n := 1
				for ; ; n += c.stride {
					w := newWorld(t)
					inject := fmt.Sprintf("%s:signal=KILL:when=%d", c.call, n)
					var a answer
					switch {
					case c.on != "":
						a = w.attached("-o", "/dev/null", "-e", "trace="+c.call, "-e", "inject="+inject, "-P", w.path(c.on))
					case c.late:
						a = w.attached("-o", "/dev/null", "-e", "trace="+c.call, "-e", "inject="+inject)
					default:
						a = w.traced(inject)
					}
					if w.read("build/a.v") != w.read("build/b.v") {
						mixed.Add(1)
					}
					isNew := w.aftermath(a)
					if t.Failed() {
						t.Fatalf("killed at %s", inject)
					}
					if a.exit != -1 {
						w.want(a, exitOK, job.OK)
						break
					}
					fired.Add(1)
					if isNew {
						committed.Add(1)
					} else {
						old.Add(1)
					}
				}
				if points := (n - 1) / c.stride; points < c.want {
					t.Errorf("%d points, want at least %d: the sweep does not reach what it is for", points, c.want)
				} else {
					t.Logf("NOTE %d points", points)
				}
			})
		}
	})
	t.Logf("NOTE %d points: %d all old, %d all new; %d mixed before recovery", fired.Load(), old.Load(), committed.Load(), mixed.Load())
	if fired.Load() < 40 || old.Load() == 0 || committed.Load() == 0 || mixed.Load() == 0 {
		t.Errorf("%d points, %d all old, %d all new, %d mixed before recovery: the sweep does not see every side", fired.Load(), old.Load(), committed.Load(), mixed.Load())
	}
}

// TestRecoveryKilledAnywhere kills recovery itself while it undoes three published targets: the next one ends what it began.
func TestRecoveryKilledAnywhere(t *testing.T) {
	for _, c := range []struct {
		call         string
		from, stride int
		want         int
	}{{"renameat2", 1, 1, 2}, {"fsync", 2, 2, 1}, {"unlinkat", 2, 3, 1}, {"pwrite64", 4, 9, 1}} {
		t.Run(c.call, func(t *testing.T) {
			t.Parallel()
			fired := 0
			for n := c.from; ; n += c.stride {
				w := newWorld(t)
				w.published()
				strace := []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + c.call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", c.call, n)}
				if c.call == "renameat2" { // not those of the volume's probe
					strace = append(strace, "-P", w.path("build"), "-P", w.path("new"))
				}
				killed := w.command(strace, "recover")
				killed.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
				a := killed.start().wait()
				if w.aftermath(answer{}) {
					t.Error("what was never committed is new")
				}
				if t.Failed() {
					t.Fatalf("killed at %s %d", c.call, n)
				}
				if a.exit != -1 {
					w.want(a, exitOK, "")
					break
				}
				fired++
			}
			if fired < c.want {
				t.Errorf("%d points, want at least %d", fired, c.want)
			}
		})
	}
}

// published leaves three killed after all three targets were exchanged, before the commit.
func (w *world) published() {
	w.t.Helper()
	a := w.attached("-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=1", "-P", w.path("build"))
	if a.exit != -1 || w.read("build/a.v")+w.read("build/b.v")+w.read("new/c.v") != "new\nnew\nnew\n" {
		w.t.Fatalf("not killed between publication and commit: %v", a)
	}
}

// TestErrorsAnywhere lets the Nth call of a system call fail, once or from then on, while the program publishes. The answer
// never says more than is true, and the next call works.
func TestErrorsAnywhere(t *testing.T) {
	codes := make(map[job.Code]*atomic.Int32)
	for _, c := range job.Codes() {
		codes[c.Code] = &atomic.Int32{}
	}
	t.Run("sweep", func(t *testing.T) {
		for _, c := range []struct {
			call, err    string
			stride, want int
		}{
			{"renameat2", "EIO", 1, 4},
			{"renameat2", "ENOSPC", 3, 2},
			{"fsync", "EIO", 1, 4},
			{"fsync", "ENOSPC", 3, 2},
			{"mkdirat", "ENOSPC", 1, 1},
			{"pwrite64", "EIO", 7, 3},
			{"pwrite64", "ENOSPC", 7, 3},
		} {
			t.Run(c.call+"/"+c.err, func(t *testing.T) {
				t.Parallel()
				failed := 0
				for n, persistent := 1, false; ; persistent = !persistent {
					w := newWorld(t)
					when := strconv.Itoa(n)
					if persistent {
						when += "+"
						n += c.stride
					}
					inject := fmt.Sprintf("inject=%s:error=%s:when=%s", c.call, c.err, when)
					log := filepath.Join(t.TempDir(), "trace")
					a := w.attached("-o", log, "-e", "trace="+c.call, "-e", inject)
					trace, err := os.ReadFile(log)
					ok(t, err)
					fired := strings.Contains(string(trace), "(INJECTED)")
					if a.exit < 0 || codes[a.Code] == nil {
						t.Fatalf("%s: no result: %v", inject, a)
					}
					codes[a.Code].Add(1)
					if a.exit != exitOf(a.Code) {
						t.Errorf("%s: exit %d for code %s", inject, a.exit, a.Code)
					}
					if a.Code != job.OK && a.RolledBack {
						w.is("build/a.v", "old\n", "build/b.v", "old\n", "new/c.v", "absent")
					}
					w.aftermath(a)
					w.want(w.sh("echo again >{x}", "x=build/a.v"), exitOK, job.OK)
					w.is("build/a.v", "again\n")
					if t.Failed() {
						t.Fatalf("%s: %v", inject, a)
					}
					if !fired {
						break
					}
					failed++
				}
				if failed < c.want {
					t.Errorf("%d failures, want at least %d: the sweep does not reach what it is for", failed, c.want)
				}
			})
		}
	})
	for _, c := range job.Codes() {
		if n := codes[c.Code].Load(); n > 0 {
			t.Logf("NOTE %d answers of %s", n, c.Code)
		}
	}
	for _, c := range []job.Code{job.OK, job.PublishFailed, job.AuditUnavailable, job.CommitInDoubt} {
		if codes[c].Load() == 0 {
			t.Errorf("no failure led to %s", c)
		}
	}
}

// TestBarriersAsTheKernelSeesThem: everything staged and the intent are durable before the first exchange, every changed
// directory before the commit is written, the commit before the answer; and there is no sync more than that.
func TestBarriersAsTheKernelSeesThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := filepath.Join(t.TempDir(), "trace")
	a := w.attached("-o", log, "-y", "-s", "20", "-e", "trace=renameat2,mkdirat,fsync,fdatasync,pwrite64,write")
	w.want(a, exitOK, job.OK)
	w.aftermath(a)
	text, err := os.ReadFile(log)
	ok(t, err)
	calls := parseTrace(t, string(text))
	for _, finding := range w.barriers(calls, a.Job) {
		t.Error(finding)
	}
	// The control: a trace that lacks any one of the syncs up to the answer is refused.
	removed := 0
	for i, c := range calls {
		if c.name == "fsync" && c.begun < answered(calls) {
			removed++
			if len(w.barriers(slices.Delete(slices.Clone(calls), i, i+1), a.Job)) == 0 {
				t.Errorf("control: without fsync of %s the trace is not refused", c.args)
			}
		}
	}
	if want := 3 + 2 + 3 + 1 + 2; removed != want { // N + 2, D + 1, two of the ledger
		t.Errorf("%d syncs, want %d", removed, want)
	}
}

// syscalled is one call in a trace: the lines at which it began and ended.
type syscalled struct {
	name, args  string
	begun, done int
}

func parseTrace(t *testing.T, text string) (calls []syscalled) {
	t.Helper()
	open := map[string]int{} // by thread: index in calls
	for i, line := range strings.Split(text, "\n") {
		thread, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		switch name, args, isCall := strings.Cut(rest, "("); {
		case strings.HasPrefix(rest, "<... "):
			calls[open[thread]].done = i
		case isCall && !strings.HasPrefix(rest, "---") && !strings.HasPrefix(rest, "+++"):
			open[thread] = len(calls)
			calls = append(calls, syscalled{name, args, i, i})
		}
	}
	if len(calls) < 20 {
		t.Fatalf("%d calls in the trace", len(calls))
	}
	return calls
}

// answered is where the result is written.
func answered(calls []syscalled) int {
	for _, c := range calls {
		if c.name == "write" && strings.HasPrefix(c.args, "1<") {
			return c.begun
		}
	}
	return -1
}

func (w *world) barriers(calls []syscalled, id string) (findings []string) {
	jobs, state := w.path(".eda-sidecar/jobs"), w.path(".eda-sidecar/state")
	dir := filepath.Join(jobs, id)
	first, last := -1, -1 // change of a name outside of the job directory
	for _, c := range calls {
		if c.name == "renameat2" && (strings.Contains(c.args, w.path("build")) || strings.Contains(c.args, w.path("new")) || strings.Contains(c.args, `"d0"`)) {
			if first < 0 {
				first = c.begun
			}
			last = c.done
		}
	}
	commit := -1 // its first frame
	for _, c := range calls {
		if commit < 0 && c.name == "pwrite64" && strings.Contains(c.args, state) && c.begun > last {
			commit = c.begun
		}
	}
	answer := answered(calls)
	if first < 0 || commit < 0 || answer < commit {
		return []string{fmt.Sprintf("no publication, commit and answer in this order: %d, %d, %d", first, commit, answer)}
	}
	synced := func(path string, after, before int) {
		if !slices.ContainsFunc(calls, func(c syscalled) bool {
			return c.name == "fsync" && strings.Contains(c.args, "<"+path+">") && c.begun > after && c.done < before
		}) {
			findings = append(findings, fmt.Sprintf("no fsync of %s between lines %d and %d", path, after, before))
		}
	}
	wal := filepath.Join(state, "ledger.db-wal")
	for _, path := range []string{dir + "/o0", dir + "/o1", dir + "/o2", dir, jobs, wal} {
		synced(path, -1, first)
	}
	for _, path := range []string{dir, w.path("build"), w.path("new"), w.dir} {
		synced(path, last, commit)
	}
	synced(wal, commit, answer)
	return findings
}
