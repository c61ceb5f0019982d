package job

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// stuck are groups that nothing can kill, until the test does. With lies they claim to be proven empty.
type stuck struct {
	lies  bool
	swept map[int]func(cgroup.Empty) // by step
	real  map[int]*cgroup.Group
}

func (s *stuck) hooks() hooks {
	s.swept, s.real = map[int]func(cgroup.Empty){}, map[int]*cgroup.Group{}
	return hooks{
		kill:   func(*cgroup.Group, int) bool { return false },
		remove: func() bool { return !s.lies },
		empty: func(g *cgroup.Group, step int) (cgroup.Empty, error) {
			s.real[step] = g
			if s.lies {
				return cgrouptest.Empty(g.Ref()), nil
			}
			return cgroup.Empty{}, &cgroup.UnprovenError{Ref: g.Ref(), Reason: cgroup.Alive, Survivors: []cgroup.Survivor{{PID: 1, Comm: "villain", State: "D"}}}
		},
		sweep: func(g *cgroup.Group, step int, proved func(cgroup.Empty)) {
			s.real[step], s.swept[step] = g, proved
		},
	}
}

// prove kills a step's group after all, and tells the sweep's callback if there is one.
func (s *stuck) prove(t *testing.T, step int) {
	t.Helper()
	e := dead(t, s.real[step])
	if proved := s.swept[step]; proved != nil {
		proved(e)
	} else {
		s.real[step].Remove(e)
	}
}

// unprovenFindings is the oracle for a call whose processes are not known to be dead: nothing was published, deleted or
// unlocked, and the evidence says so.
func unprovenFindings(r *rig, res Result, cause string) (findings []string) {
	check := func(ok bool, what string) {
		if !ok {
			findings = append(findings, what)
		}
	}
	check(res.Code == TerminationUnproven && !res.RolledBack && !res.WorkerTerminated, "result is "+string(res.Code)+" "+res.Message)
	check(r.kinds(res.Job) == "allow start "+cause+" termination_unproven", "events are "+r.kinds(res.Job))
	check(r.read("a") == "old", "the target holds "+r.read("a"))
	staged, err := os.ReadFile(filepath.Join(r.dir, ".eda-sidecar", "jobs", res.Job, "s0", "out"))
	check(err == nil && string(staged) == "new\n", "staging is gone")
	check(r.phase(res.Job) == txn.WorkerRunning, "phase is "+string(r.phase(res.Job)))
	return append(findings, r.held("a")...)
}

// TestUnproven keeps everything as it is while death is not proven, and ends the job when it is. The control claims a
// proof that the kernel did not give, and must be found out.
func TestUnproven(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		timeout      time.Duration
		cancel       bool
		cause        string
	}{
		{"late", "echo new > {a}; sleep 300", 100 * time.Millisecond, false, "timeout"},
		{"cancelled", "echo new > {a}; sleep 300", 0, true, "cancel"},
		{"exit_3", "echo new > {a}; exit 3", 0, false, "error"},
		{"exit_0", "echo new > {a}", 0, false, "error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			call := func(lies bool) (*rig, *stuck, Result) {
				s := &stuck{lies: lies}
				var c *call
				h := s.hooks()
				h.wait = func(ctx context.Context, p *cgroup.Process) (cgroup.Exit, error) {
					if tt.cancel && c != nil {
						until(t, "the tool's output", func() bool {
							staged, _ := filepath.Glob(filepath.Join(c.root, ".eda-sidecar/jobs/*/s0/out")) // the pattern is well-formed
							return len(staged) == 1
						})
						c.cell.Abort(outcome.Cancelled)
					}
					exit, err := p.Wait(ctx)
					if err != nil {
						exit.At = time.Now() // it lives on; a real group that is proven has been reaped
					}
					return exit, err
				}
				r := newRig(t, parts{groups: h, o: Options{QueueTimeout: 50 * time.Millisecond}})
				r.write("a", "old")
				req := r.sh(tt.script, "a=a")
				req.Timeout = tt.timeout
				c = r.newCall(req)
				res := c.answer(c.run())
				c = nil
				r.Runner.groups = hooked{r.parent, &hooks{}} // for the next calls
				return r, s, res
			}
			r, s, res := call(true)
			if len(unprovenFindings(r, res, tt.cause)) == 0 {
				t.Error("control: a claimed proof was not noticed")
			}
			s.prove(t, 0)

			r, s, res = call(false)
			for _, f := range unprovenFindings(r, res, tt.cause) {
				t.Error(f)
			}
			s.prove(t, 0)
			r.order(res.Job, "allow start "+tt.cause+" termination_unproven worker_terminated rollback")
			if r.phase(res.Job) != txn.RolledBack || r.read("a") != "old" || slices.Contains(r.jobs(), res.Job) {
				t.Errorf("after the proof: phase %s, target %q, left %v", r.phase(res.Job), r.read("a"), r.jobs())
			}
			r.must(r.sh("echo newer > {a}", "a=a"))
		})
	}
}

// TestUnprovenSteps needs the proof of every group, also of those that no step came to.
func TestUnprovenSteps(t *testing.T) {
	s := &stuck{}
	r := newRig(t, parts{groups: s.hooks(), o: Options{QueueTimeout: 50 * time.Millisecond}})
	r.write("a", "old")
	tool := newTool([]adapters.Param{output("a", adapters.KindFile)}, func(a adapters.Args) []adapters.Step {
		one, two := script("one", "echo new > $A"), script("two", "true")
		one.Env = []string{"A=" + a.Staged("a")}
		return []adapters.Step{one, two}
	})
	res := r.want(r.with(tool, "a"), TerminationUnproven)
	for _, f := range unprovenFindings(r, res, "error") {
		t.Error(f)
	}
	s.prove(t, 1)
	for _, f := range unprovenFindings(r, res, "error") {
		t.Errorf("with one proof of two: %s", f)
	}
	s.prove(t, 0)
	r.order(res.Job, "allow start error termination_unproven worker_terminated rollback")
}

// TestUnprovenRead says that a read's death is not proven, and when it is.
func TestUnprovenRead(t *testing.T) {
	s := &stuck{}
	r := newRig(t, parts{groups: s.hooks()})
	res := r.want(r.sh("true"), TerminationUnproven)
	r.order(res.Job, "allow start error termination_unproven")
	if left := r.jobs(); res.WorkerTerminated || len(left) != 1 {
		t.Errorf("result %+v, left %v", res, left)
	}
	s.prove(t, 0)
	r.order(res.Job, "allow start error termination_unproven worker_terminated")
	if left := r.jobs(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// TestUnprovenBeforeStart denies a call whose group was made and then not proven empty: nothing was started in it.
func TestUnprovenBeforeStart(t *testing.T) {
	s := &stuck{}
	h := s.hooks()
	h.create = func(step int) error {
		if step == 1 {
			return os.ErrPermission
		}
		return nil
	}
	r := newRig(t, parts{groups: h})
	tool := newTool([]adapters.Param{output("a", adapters.KindFile)}, func(adapters.Args) []adapters.Step {
		return []adapters.Step{script("one", "true"), script("two", "true")}
	})
	res := r.want(r.with(tool, "a"), ContainmentUnavailable)
	r.order(res.Job, "deny")
	if s.swept[0] == nil {
		t.Error("nobody looks after the group")
	}
	s.prove(t, 0)
}
