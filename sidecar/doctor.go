package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
		if c, err := Ask(ctx, cfg, false); err == nil {
			return append(append(checks, c.doctor()...), conflicts(cfg, c.Waiting)...)
		}
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
	waiting := s.waiting()
	checks = append(append(checks, quarantined(waiting)...), conflicts(cfg, waiting)...)
	if len(waiting) == 0 {
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
			_ = errors.As(err, &failed) // every error of Programs is one
			add("tool "+t.Name, cgroup.Warn, err.Error(), failed.Advice())
			continue
		}
		add("tool "+t.Name, cgroup.OK, strings.Join(found, ", "), "")
	}
	return checks
}

// waiting are the jobs of earlier processes that an operator has to decide.
func (s *Sidecar) waiting() []Recovered {
	return slices.DeleteFunc(slices.Clone(s.Recovered), func(r Recovered) bool { return r.Resolution != txn.Quarantined })
}

func quarantined(waiting []Recovered) (checks []cgroup.Check) {
	for _, r := range waiting {
		checks = append(checks, cgroup.Check{
			Name: "quarantine", Status: cgroup.Fail, Found: fmt.Sprintf("job %s: %s", r.Job, r.Reason),
			Fix: fmt.Sprintf("look at its targets, put them right, then move its directory to .eda-sidecar/conflicts/%s (or make an empty one there) and start again", r.Job),
		})
	}
	return checks
}

// conflicts warns of what was kept for somebody to look at. What decides a job that waits has to stay until the next start.
func conflicts(cfg Config, waiting []Recovered) (checks []cgroup.Check) {
	entries, err := os.ReadDir(filepath.Join(cfg.Workspace, ".eda-sidecar", "conflicts"))
	if err != nil {
		return []cgroup.Check{{Name: "conflicts", Status: cgroup.Warn, Found: err.Error(), Fix: "let the engine's user read it"}}
	}
	for _, e := range entries {
		if !slices.ContainsFunc(waiting, func(r Recovered) bool { return r.Job == e.Name() }) {
			checks = append(checks, cgroup.Check{
				Name: "conflicts", Status: cgroup.Warn, Found: fmt.Sprintf("somebody's bytes are kept in .eda-sidecar/conflicts/%s", e.Name()), Fix: "look at them, then remove them: the engine never does",
			})
		}
	}
	return checks
}

// doctor is what a server says of itself, as checks.
func (c Control) doctor() (checks []cgroup.Check) {
	checks = append(checks, cgroup.Check{
		Name: "server", Status: cgroup.OK, Found: fmt.Sprintf("pid %d: %d jobs running, %d queued", c.PID, c.Running, c.Queued),
	})
	if c.Unproven > 0 {
		checks = append(checks, cgroup.Check{
			Name: "unproven", Status: cgroup.Fail, Found: fmt.Sprintf("%d jobs have processes that could not be proven dead", c.Unproven),
			Fix: "'eda-sidecar audit --kind termination_unproven' names them; their keys are freed once death is proven",
		})
	}
	for _, r := range c.Checks {
		check := cgroup.Check{Name: "ready " + r.Name, Status: cgroup.OK, Found: "ok"}
		if !r.OK {
			check.Status, check.Found, check.Fix = cgroup.Fail, r.Reason, "docs/server.md says what each check is and what it waits for"
		}
		checks = append(checks, check)
	}
	return append(checks, quarantined(c.Waiting)...)
}
