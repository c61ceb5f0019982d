package job

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
)

// Registry runs calls as jobs that may outlive the call that started them, and remembers how they ended.
type Registry struct {
	// fixed at creation
	runner *Runner
	o      RegistryOptions
	gate   outcome.Gate // counts jobs and operations on sessions

	mu sync.Mutex
	// guarded by mu
	jobs     map[string]*Handle
	ended    []*Handle // of jobs, in the order of their ends
	bytes    int       // of their answers
	draining bool
	keys     map[scope]keyed

	learning sync.Mutex
	learned  bool // guarded by learning
}

// RegistryOptions bound a Registry. Zero values take the defaults.
type RegistryOptions struct {
	MaxRunning  int           // jobs that run; beyond: BUSY. Those that wait have the lock table's bound; 0: 64
	MaxFinished int           // answers that are remembered; 0: 512
	MaxBytes    int           // of them together, as JSON; 0: 16 MiB
	KeepFor     time.Duration // how long; 0: 24 h
}

// NewRegistry returns an empty registry of calls that r runs.
func NewRegistry(r *Runner, o RegistryOptions) *Registry {
	if o.MaxRunning == 0 {
		o.MaxRunning = 64
	}
	if o.MaxFinished == 0 {
		o.MaxFinished = 512
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 16 << 20
	}
	if o.KeepFor == 0 {
		o.KeepFor = 24 * time.Hour
	}
	return &Registry{runner: r, o: o, jobs: map[string]*Handle{}}
}

// Start runs a call in a goroutine of its own. A call that cannot be admitted ends at once, with BUSY or SHUTTING_DOWN
// and recorded like any other refusal. One whose key has a job runs nothing: it joins the job, or has its answer.
func (r *Registry) Start(req Request) *Handle {
	entered, isKeyed := r.gate.Enter(), req.Key != Key{}
	if isKeyed && req.Refused == nil {
		req.Refused = r.learn()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var h *Handle // of the key's job
	switch {
	case req.Refused != nil:
	case !entered || r.draining:
		req.Refused = failf(ShuttingDown, "the engine is stopping")
	case isKeyed:
		h, req.Refused = r.repeatLocked(req)
	}
	if running, _ := r.countLocked(); h == nil && req.Refused == nil && running >= r.o.MaxRunning {
		req.Refused = failf(Busy, "%d jobs run, which is as many as may", running)
	}
	leave := func() {
		if entered {
			r.gate.Leave()
		}
	}
	if h != nil && r.jobs[h.c.id] != nil {
		leave()
		return h
	}
	answer := r.recalled
	if h == nil {
		h, answer = r.newHandle(req), func(h *Handle) Result { return h.c.answer(h.c.run()) }
		if isKeyed && req.Refused == nil {
			r.keys[scopeOf(req)] = keyed{req.Key.Args, h.c.id, h.c.asked}
		}
	}
	r.jobs[h.c.id] = h
	go func() {
		h.result = answer(h)
		h.c.forget()
		close(h.done)
		r.end(h)
		leave()
	}()
	return h
}

func (r *Registry) newHandle(req Request) *Handle {
	return &Handle{run: &run{c: r.runner.newCall(req), done: make(chan struct{})}}
}

// end moves h among the ended ones, and forgets those that are too many, too much or too old. One whose keys are held is
// not forgotten.
func (r *Registry) end(h *Handle) {
	b, err := json.Marshal(h.result)
	if err != nil {
		b = nil // cannot happen: it is sent in this form
	}
	h.bytes = len(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := scopeOf(h.c.req); h.result.RolledBack && r.keys[k].job == h.c.id {
		delete(r.keys, k)
	}
	r.ended = append(r.ended, h)
	r.bytes += h.bytes
	excess := len(r.ended) - r.o.MaxFinished
	oldest := r.runner.o.Now().Add(-r.o.KeepFor)
	r.ended = slices.DeleteFunc(r.ended, func(h *Handle) bool {
		end := h.c.cell.End()
		held := end == outcome.Unproven || end == outcome.InDoubt || end == outcome.Undecided
		if held || excess <= 0 && r.bytes <= r.o.MaxBytes && h.c.asked.After(oldest) {
			return false
		}
		excess--
		r.bytes -= h.bytes
		delete(r.jobs, h.c.id)
		return true
	})
}

// Find returns the job of this id that runs or has ended lately, or nil.
func (r *Registry) Find(who Who, id string) *Handle {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.jobs[id]; h != nil && who.sees(h.c.req.Principal) {
		return h
	}
	return nil
}

// List returns the jobs that run or have ended lately, the newest first.
func (r *Registry) List(who Who) []*Handle {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*Handle
	for _, h := range r.jobs {
		if who.sees(h.c.req.Principal) {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *Handle) int { return b.c.asked.Compare(a.c.asked) })
	return all
}

// Counts are the jobs of a Registry by what they do or wait for.
type Counts struct {
	Running, Queued     int
	Unproven, Undecided int // ended, with their keys held: death not proven; undo or commit not decided
}

// Counts returns how many jobs there are now.
func (r *Registry) Counts() (n Counts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n.Running, n.Queued = r.countLocked()
	for _, h := range r.ended {
		switch h.c.cell.End() {
		case outcome.Unproven:
			n.Unproven++
		case outcome.InDoubt, outcome.Undecided:
			n.Undecided++
		case outcome.Committed, outcome.RolledBack, outcome.Read:
		}
	}
	return n
}

func (r *Registry) countLocked() (running, queued int) {
	for _, h := range r.jobs {
		switch {
		case h.Ended():
		case h.c.at.Load().state == StateQueued:
			queued++
		default:
			running++
		}
	}
	return running, queued
}

// OpenSession is Runner.OpenSession while the registry is not drained.
func (r *Registry) OpenSession(ctx context.Context, principal, name string) (ledger.Session, error) {
	if !r.gate.Enter() {
		return ledger.Session{}, failf(ShuttingDown, "the engine is stopping")
	}
	defer r.gate.Leave()
	return r.runner.OpenSession(ctx, principal, name)
}

// CloseSession is Runner.CloseSession while the registry is not drained. force cancels the job that holds the session;
// without it the close waits for that job's end.
func (r *Registry) CloseSession(ctx context.Context, who Who, id string, force bool) error {
	if !r.gate.Enter() {
		return failf(ShuttingDown, "the engine is stopping")
	}
	defer r.gate.Leave()
	row, err := r.runner.Session(ctx, who, id)
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	var cancels sync.WaitGroup
	defer cancels.Wait()
	defer close(closed)
	if force {
		cancels.Go(func() { r.cancelHolders(SessionKey(row), closed) })
	}
	return r.runner.CloseSession(ctx, who, id)
}

// cancelHolders cancels whoever holds the key until closed: the one in front, and one that was granted just before the
// close had its place at the head of the queue.
func (r *Registry) cancelHolders(key lock.Key, closed <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, holder := range r.runner.table.Holders(key) {
			r.mu.Lock()
			h := r.jobs[holder.Job]
			r.mu.Unlock()
			if h != nil {
				h.c.cell.Abort(outcome.Destroyed)
			}
		}
		select {
		case <-tick.C:
		case <-closed:
			return
		}
	}
}

// Drain refuses new calls and ends those that wait in the queue, with SHUTTING_DOWN. The channel is closed when all jobs
// have ended.
func (r *Registry) Drain() <-chan struct{} {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	r.abort(func(h *Handle) bool { return h.c.at.Load().state == StateQueued })
	return r.gate.Drain()
}

// Stop is Drain that ends also the running jobs, and waits for the end of all. The error is the cause of ctx and says how
// many are left.
func (r *Registry) Stop(ctx context.Context) error {
	ended := r.Drain()
	r.abort(func(*Handle) bool { return true })
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		n := r.Counts()
		return fmt.Errorf("stop: %d jobs have not ended: %w", n.Running+n.Queued, context.Cause(ctx))
	}
}

func (r *Registry) abort(which func(*Handle) bool) {
	r.mu.Lock()
	var all []*Handle
	for _, h := range r.jobs {
		if !h.Ended() && which(h) {
			all = append(all, h)
		}
	}
	r.mu.Unlock()
	for _, h := range all {
		h.c.cell.Abort(outcome.Shutdown)
	}
}
