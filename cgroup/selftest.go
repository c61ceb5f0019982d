package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// selfTest starts this binary as a probe that leaves a daemon behind, kills, proves and removes the group. A clone3 that
// is refused (default seccomp profiles answer ENOSYS or EPERM) selects the shim; there is no fallback later.
func (p *Parent) selfTest(ctx context.Context) error {
	p.caps.Entry = EntryClone3
	err := p.probe(ctx)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		p.caps.Entry, p.caps.EntryWhy = EntryShim, err.Error()
		err = p.probe(ctx)
	}
	return err
}

// probe runs the self-test once with the entry that is chosen.
func (p *Parent) probe(ctx context.Context) error {
	g, err := p.Create(ctx, fmt.Sprintf("probe-%d-%d", os.Getpid(), time.Now().UnixNano()), 0, Limits{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	process, startErr := g.Start(ctx, Command{Path: selfExe, Args: []string{probeName}, Dir: "/", Linger: NoLinger, Sandbox: Sandbox{Workspace: p.o.Workspace, UID: -1, GID: -1}})
	if startErr == nil {
		_, startErr = process.Wait(ctx)
	}
	begin := time.Now()
	killed, killErr := g.Kill(ctx)
	empty, err := g.WaitEmpty(context.WithoutCancel(ctx))
	p.caps.ProofMicros = time.Since(begin).Microseconds()
	g.Remove(empty)
	if err := errors.Join(startErr, killErr, err); err != nil {
		return err
	}
	if out := string(process.Output().Head); killed.Count != 1 || out != "probe <nil>\n" {
		return fmt.Errorf("the probe left %d daemons and said %q; main must call cgroup.Child first", killed.Count, out)
	}
	return nil
}
