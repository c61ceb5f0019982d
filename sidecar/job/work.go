package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// work runs the steps one after another, each in its own group, and proves every group empty: also those that no step
// came to. It stops at the first step that the plan does not let pass.
func (c *call) work() error {
	defer c.watch()()
	for i := range c.inv.Steps {
		err := c.step(i)
		if errors.Is(err, errStop) {
			break
		}
		if err != nil {
			return err
		}
	}
	return c.prove()
}

// watch ends the job when its staging grows beyond its limit. It returns what ends the watch.
func (c *call) watch() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := c.files.Sample(c.journal, c.quotas()); errors.Is(err, txn.ErrQuota) {
					c.over.CompareAndSwap(nil, &err)
					c.cell.Abort(outcome.Quota)
				}
				if c.files.Exhausted() {
					c.full.Store(true)
				}
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		if c.files.Exhausted() {
			c.full.Store(true)
		}
	}
}

// errStop ends the steps without being the call's error: the judgement says what is wrong.
var errStop = errors.New("the tool did not do its work")

// step starts step i, waits for its leader and its linger, kills what is left, and proves the group empty.
func (c *call) step(i int) error {
	g, s := c.groups[i], c.inv.Steps[i]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !c.cell.Register(cancel) {
		return c.aborted()
	}
	defer c.cell.Unregister()
	command, err := c.command(s)
	if err != nil {
		return err
	}
	p, err := g.Start(ctx, command) // 6
	if err != nil {
		if c.cell.Aborted() != outcome.None {
			return c.aborted()
		}
		return err
	}
	c.started(i, p, command)
	exit, _ := p.Wait(ctx)                // 7: its error is the cause of ctx, which the cell knows better
	if err := c.proveOne(g); err != nil { // 8, always
		if c.cell.Aborted() != outcome.None {
			return c.aborted() // the first error; settle says the other
		}
		return err
	}
	if cause := exit.Cause; exit.At.IsZero() { // ended by our kill: it is reaped by now, and says how
		exit, _ = p.Wait(context.Background()) // at once: the group is empty
		exit.Cause = cause
	}
	c.ended(i, p, exit)
	if cause := c.cell.Aborted(); cause != outcome.None {
		return c.aborted()
	}
	if p := c.panicked.Load(); p != nil {
		return *p
	}
	e := c.exits[i]
	switch {
	case e.Signal == signalName(unix.SIGXFSZ) || e.Code == 128+int(unix.SIGXFSZ): // the latter as a shell says it
		return failf(OutputLimit, "step %q wrote more than %d bytes into one file", s.Name, c.effective().StagingBytes)
	case e.OOM:
		return failf(OutOfMemory, "step %q ran out of memory (limit %d bytes)", s.Name, c.effective().MemoryBytes)
	case e.Failed(s) && c.res.Usage.PidsMax != nil && *c.res.Usage.PidsMax > 0:
		return failf(ProcessLimit, "step %q met its limit of %d processes %d times", s.Name, c.effective().Pids, *c.res.Usage.PidsMax)
	case e.Failed(s):
		return errStop
	case i+1 < len(c.inv.Steps):
		return c.checkMakes(i)
	}
	return nil
}

// checkMakes validates what step i made, before the next program believes it.
func (c *call) checkMakes(i int) error {
	staged, err := c.tx.StepFS(c.proofs, i+1)
	if err != nil {
		return err
	}
	return guard("validate", func() error {
		if len(c.inv.CheckMakes(i, staged)) > 0 {
			return errStop
		}
		return nil
	})
}

// command is step s as a process: argv of the plan, the base environment, the sandbox of this job alone.
func (c *call) command(s adapters.Step) (cgroup.Command, error) {
	program, err := c.programs.find(c.req.Tool, s.Argv[0])
	if err != nil {
		return cgroup.Command{}, err
	}
	dir, limits := c.tx.Dir(), c.effective()
	env := append(cgroup.BaseEnv(filepath.Join(dir, "tmp"), c.o.Path), "QT_QPA_PLATFORM=offscreen")
	env = append(env, c.passed()...)
	jobDirs := []string{c.tx.Work(), filepath.Join(dir, "tmp")}
	for i := range c.journal.Outputs {
		jobDirs = append(jobDirs, filepath.Join(dir, fmt.Sprintf("s%d", i)))
	}
	return cgroup.Command{
		Path: program.path, Args: append([]string{program.path}, s.Argv[1:]...), Env: append(env, s.Env...), Dir: c.tx.Work(),
		Log: c.tx.Log(), LogCap: max(limits.LogBytes-c.log.bytes, 1), FileSizeMax: limits.StagingBytes, Line: c.progress(),
		Sandbox: cgroup.Sandbox{
			Job: jobDirs, Workspace: c.root, Readable: c.o.Readable, Hidden: c.o.Hidden, Network: c.req.Tool.Network,
			UID: c.o.ToolUID, GID: c.o.ToolGID,
		},
	}, nil
}

// passed are the variables of ours that the tool declares and the host's config allows.
func (c *call) passed() (env []string) {
	for _, name := range c.req.Tool.PassEnv {
		for _, pair := range c.o.PassEnv {
			if len(pair) > len(name) && pair[:len(name)+1] == name+"=" {
				env = append(env, pair)
			}
		}
	}
	return env
}

func (c *call) progress() func([]byte) {
	if c.req.Tool.Progress == nil {
		return nil
	}
	return func(line []byte) {
		var p adapters.Progress
		var made bool
		err := guard("progress", func() error { p, made = c.req.Tool.Progress(line); return nil })
		if err != nil {
			c.panicked.CompareAndSwap(nil, &err)
		} else if made {
			c.see(func(a *at) { a.progress = p })
			if c.req.Progress != nil {
				c.req.Progress(p)
			}
		}
	}
}

// started says that a process of the job is there, and starts its clock with the first one.
func (c *call) started(i int, p Process, command cgroup.Command) {
	c.running, c.res.Started = true, true
	c.tx.Started(p.PID())
	if i > 0 {
		return
	}
	timer := time.AfterFunc(c.timeout(), func() { c.cell.Abort(outcome.Deadline) })
	c.see(func(a *at) { a.deadline = c.o.Now().Add(c.timeout()) })
	c.stop = append(c.stop, func() { timer.Stop() })
	caps := c.Runner.groups.Capabilities()
	c.start = c.event(audit.Start, map[string]any{
		"pid": p.PID(), "group": c.groups[0].Ref().Path, "argv_sha256": Digest(command.Args),
		"entry": string(caps.Entry), "landlock_abi": caps.LandlockABI, "programs": c.programs.of(c.req.Tool),
	})
	c.said, _ = c.ledger.Record(c.start) // a ledger that does not take it takes no commit either
}

// ended gathers what the step leaves behind: exit, log, usage, limits met.
func (c *call) ended(i int, p Process, exit cgroup.Exit) {
	e := adapters.StepExit{Name: c.inv.Steps[i].Name, Code: exit.Code, OOM: exit.Cause == cgroup.OOM}
	if exit.Signal != 0 {
		e.Signal = signalName(exit.Signal)
	}
	if usage, err := c.groups[i].Usage(); err == nil {
		addUsage(&c.res.Usage, usage)
		e.OOM = e.OOM || usage.OOMKills != nil && *usage.OOMKills > 0
	}
	out := p.Output()
	c.log.add(out)
	if info, err := c.tx.Log().Stat(); err == nil {
		e.LogEnd = info.Size()
	}
	separator := e.Separator()
	if printed := slices.Concat(out.Head, out.Tail); len(printed) > 0 && printed[len(printed)-1] != '\n' {
		separator = "\n" + separator
	}
	_, _ = io.WriteString(c.tx.Log(), separator) // for a reader; on a full disk the copier has said so
	c.exits = append(c.exits, e)
}

// prove proves every group empty that has no proof yet. After it c.proofs covers the job, or c.survived says why not: a
// group that is not known to be empty is not waited for twice.
func (c *call) prove() error {
	for _, g := range c.groups {
		if c.survived == nil && !c.proven(g) {
			if err := c.proveOne(g); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *call) proven(g Group) bool {
	for _, e := range c.proofs {
		if e.Proves(g.Ref()) {
			return true
		}
	}
	return false
}

// proveOne kills what is in g and waits for the proof, whoever has cancelled what. A tool that is late or cancelled is
// asked first: it may give back its licence.
func (c *call) proveOne(g Group) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.o.KillTimeout+c.o.Grace)
	defer cancel()
	began := c.o.Now()
	var empty cgroup.Empty
	var err error
	if c.cell.Aborted() != outcome.None {
		empty, err = g.Terminate(ctx, c.o.Grace)
	} else {
		descendants, _ := g.Kill(ctx) // a refused kill shows in the proof
		c.res.DescendantsKilled += descendants.Count
		empty, err = g.WaitEmpty(ctx)
	}
	if err != nil {
		c.survived = fail(TerminationUnproven, "prove the tool dead", err)
		return c.survived
	}
	took := c.o.Now().Sub(began)
	if took > c.o.Grace && c.cell.Aborted() != outcome.None {
		took -= c.o.Grace // which a stubborn tool got as a gift
	}
	c.times.Kill = max(c.times.Kill, took)
	c.proofs = append(c.proofs, empty)
	return nil
}

// timeout is how long the tool may run: what the caller asks for, which admission held against the ceiling.
func (c *call) timeout() time.Duration {
	limits := c.effective()
	if c.req.Timeout == 0 {
		return limits.Wall
	}
	return c.req.Timeout
}

func (c *call) effective() adapters.Limits { return c.Limits(c.req.Tool) }

// Limits are the tool's limits under the host's config, whose wall time is the default and the ceiling of what a call may
// ask for.
func (r *Runner) Limits(t *adapters.Tool) adapters.Limits {
	l, host := t.Limits, r.o.Limits[t.Name]
	if host.Wall > 0 {
		l.Wall, l.WallMax = host.Wall, host.Wall
	}
	for _, f := range []struct{ to, from *int64 }{
		{&l.MemoryBytes, &host.MemoryBytes}, {&l.Pids, &host.Pids}, {&l.StagingBytes, &host.StagingBytes}, {&l.LogBytes, &host.LogBytes},
	} {
		if *f.from > 0 {
			*f.to = *f.from
		}
	}
	return l
}

func (c *call) quotas() txn.Quotas {
	l := c.effective()
	return txn.Quotas{OutputBytes: l.StagingBytes, JobBytes: l.StagingBytes + l.LogBytes}
}

// limits are what the kernel is to enforce: memory without swap, as an out-of-memory that swaps first looks like a hang.
func (c *call) limits() cgroup.Limits {
	l := c.effective()
	memory, pids := l.MemoryBytes, l.Pids
	return cgroup.Limits{Resources: specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}}
}

// transcript is what all steps printed.
type transcript struct {
	bytes     int64
	truncated bool
	tail      []byte // of the last step
}

// add counts a step's output.
func (t *transcript) add(o cgroup.Output) {
	t.bytes += o.Bytes
	t.truncated = t.truncated || o.Truncated
	t.tail = o.Tail
}

const logEnd = 64 << 10 // of the log at each end, in a result

// ends reads both ends of the log for the answer.
func (t *transcript) ends(path string, m *adapters.Mapper) (l Log, err error) {
	l = Log{Bytes: t.bytes, Truncated: t.truncated}
	f, err := os.Open(path)
	if err != nil {
		return l, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	head := make([]byte, logEnd)
	n, err := io.ReadFull(f, head)
	l.Head = m.String(string(head[:n]))
	if err != nil { // all of it is in head
		return l, nil
	}
	if t.truncated && len(t.tail) > 0 {
		l.Tail = m.String(string(t.tail))
		return l, nil
	}
	info, err := f.Stat()
	if err != nil {
		return l, err
	}
	from := max(logEnd, info.Size()-logEnd)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, logEnd))
	l.Tail = m.String(string(tail))
	l.Truncated = l.Truncated || from > logEnd
	return l, err
}
