package sidecar

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Doctor checks everything that calls rest on here: containment, volume, ledger, leftovers, and every tool's programs.
// It opens the engine as a call does, and so heals what an earlier process left. Beside a living engine it looks only.
func Doctor(ctx context.Context, cfg Config) []cgroup.Check {
	checks := cgroup.Doctor(ctx, cfg.groups())
	add := func(name string, status cgroup.Status, found, fix string) {
		checks = append(checks, cgroup.Check{Name: name, Status: status, Found: found, Fix: fix})
	}
	s, err := Open(ctx, cfg)
	var failed *job.Error
	switch {
	case err == nil:
	case errors.As(err, &failed) && failed.Code == job.Busy:
		add("owner", cgroup.Warn, err.Error()+"; volume, ledger and programs are not looked at", "wait for that process to end, or end it, and run doctor again")
		return checks
	case errors.As(err, &failed) && failed.Code == job.ContainmentUnavailable:
		add("workspace", cgroup.OK, cfg.Workspace, "")
		return checks // its reasons are in the list
	default:
		add("workspace", cgroup.Fail, err.Error(), failed.Advice())
		return checks
	}
	defer func() { _ = s.Close() }() // the next start heals what is left
	add("workspace", cgroup.OK, fmt.Sprintf("%s: exchange, no-replace, locks, leases and identities work on its volume", cfg.Workspace), "")
	opening := s.Ledger.Opening()
	if w := opening.Warnings; len(w) > 0 {
		add("ledger", cgroup.Warn, strings.Join(w, "; "), "end long readers of the ledger")
	} else {
		add("ledger", cgroup.OK, fmt.Sprintf("%s, epoch %d", cfg.StateDir, opening.Epoch), "")
	}
	waiting := 0
	for _, r := range s.Recovered {
		if r.Resolution == txn.Quarantined {
			waiting++
			add("quarantine", cgroup.Fail, fmt.Sprintf("job %s: %s", r.Job, r.Reason),
				fmt.Sprintf("look at its targets, put them right, then move its directory to .eda-sidecar/conflicts/%s (or make an empty one there) and start again", r.Job))
		}
	}
	if waiting == 0 {
		add("recovery", cgroup.OK, fmt.Sprintf("%d jobs of an earlier process decided, none waits", len(s.Recovered)), "")
	}
	for _, t := range cfg.Catalog.Tools() {
		programs, err := s.Runner.Programs(t)
		var found []string
		for _, p := range programs {
			text := strings.TrimSpace(p.Path + " " + p.Version)
			if p.Newer {
				text += " (newer than any that was tested)"
			}
			found = append(found, text)
		}
		if err != nil {
			add("tool "+t.Name, cgroup.Warn, err.Error(), job.ToolNotInstalled.Hint())
			continue
		}
		add("tool "+t.Name, cgroup.OK, strings.Join(found, ", "), "")
	}
	return checks
}
