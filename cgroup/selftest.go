package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// selfTest starts this binary as a probe that leaves a daemon behind, kills, proves and removes the group. A clone3 that
// is refused (default seccomp profiles answer ENOSYS or EPERM) selects the shim; there is no fallback later.
func (p *Parent) selfTest(ctx context.Context) *Reason {
	p.caps.Entry = EntryClone3
	err := p.probe(ctx)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		p.caps.Entry, p.caps.EntryWhy = EntryShim, "clone3: "+err.Error()
		err = p.probe(ctx)
	}
	if err != nil {
		return &Reason{"self-test", err.Error(), p.caps.Dir, "see the reason; a seccomp or LSM profile may refuse clone3, cgroup.procs or landlock"}
	}
	return nil
}

// probe runs the self-test once with the entry that is chosen.
func (p *Parent) probe(ctx context.Context) error {
	job := fmt.Sprintf("probe-%d-%s", os.Getpid(), p.caps.Entry)
	g, err := p.Create(ctx, job, 0, Limits{})
	if err != nil {
		return err
	}
	process, startErr := g.Start(ctx, Command{Path: selfExe, Args: []string{probeName}, Dir: "/", Linger: -1, Sandbox: Sandbox{UID: -1, GID: -1}})
	var exit Exit
	var output string
	if startErr == nil {
		wait, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		exit, startErr = process.Wait(wait)
	}
	begin := time.Now()
	killed, killErr := g.Kill(ctx)
	empty, err := g.WaitEmpty(ctx)
	p.caps.ProofMicros = time.Since(begin).Microseconds()
	if process != nil {
		output = string(process.Output().Head)
	}
	g.Remove(empty)
	switch {
	case startErr != nil:
		return startErr
	case err != nil:
		return err
	case killErr != nil:
		return killErr
	case exit.Code != 0 || killed.Count != 1 || !strings.HasPrefix(output, "probe\n"):
		return fmt.Errorf("the probe left exit code %d, %d daemons and output %q; main must call cgroup.Child first", exit.Code, killed.Count, output)
	}
	return nil
}
