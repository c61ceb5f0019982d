package cgroup

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Status is the result of a check.
type Status string

// The results of a check.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "FAIL"
)

// Check is one line of doctor. Fix is empty when Status is OK.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Fix    string `json:"fix,omitempty"`
}

// Doctor runs what Open runs, beside a living server if there is one, and reports each check. What could not be looked at
// because of an earlier FAIL is left out.
func Doctor(ctx context.Context, o Options) []Check {
	o.guest, o.NoReaper = true, true
	p := newParent(ctx, o)
	reasons := p.open(ctx)
	checks := p.checks(ctx, reasons)
	_ = p.Close(ctx) // the probe's removal; what is late is no finding
	return checks
}

// Checks reports the checks of a running Parent.
func (p *Parent) Checks(ctx context.Context) []Check { return p.checks(ctx, nil) }

func (p *Parent) checks(ctx context.Context, reasons []Reason) (all []Check) {
	for _, r := range reasons {
		all = append(all, Check{r.Check, Fail, strings.TrimSpace(r.What + " " + r.Where), r.Fix})
	}
	add := func(reached bool, name, found, warning string) { // a warning is the fix
		if !reached || slices.ContainsFunc(all, func(c Check) bool { return c.Name == name }) {
			return
		}
		all = append(all, Check{name, OK, found, warning})
		if warning != "" {
			all[len(all)-1].Status = Warn
		}
	}
	c := p.caps
	open, proven := p.middle != nil, len(reasons) == 0
	add(c.Mount != "", "cgroup2", fmt.Sprintf("%s hierarchy at %s, our place %q is %s", c.HostMode, c.Mount, c.Base, c.Kind), "")
	add(open, "writable", c.Dir, "")
	add(open, "cgroup.kill", "present", "")
	warning := ""
	if len(c.Missing) > 0 {
		warning = "limits without a controller are not in force; delegate the controllers to this group"
	}
	add(open, "controllers", fmt.Sprintf("enabled %v, missing %v %s", c.Controllers, c.Missing, c.MissingWhy), warning)
	warning = ""
	if c.Entry == EntryShim {
		warning = "permit clone3 in the seccomp profile: each start costs about 2 ms more"
	}
	add(proven, "entry", fmt.Sprintf("%s %s", c.Entry, c.EntryWhy), warning)
	add(proven, "self-test", fmt.Sprintf("setsid daemon killed and proven dead in %d us", c.ProofMicros), "")
	add(c.LandlockABI >= minABI, "landlock", fmt.Sprintf("ABI %d%s", c.LandlockABI, lacks(c.LandlockABI)), "")
	add(true, "uid", fmt.Sprintf("%d; attributes (mode, owner, times) of files of the tool's uid are not protected by Landlock", c.UID), "")
	found, warning := "none", ""
	if s := reachableSockets(); len(s) > 0 {
		if found = strings.Join(s, " "); c.LandlockABI < 9 {
			warning = "a tool can ask these services to start processes that nobody here sees: restrict their access"
		}
	}
	add(true, "sockets", found, warning)
	add(c.Subreaper, "subreaper", "set", "")
	if open {
		left, err := p.Leftovers(ctx, "")
		s := p.Stats()
		found, warning = fmt.Sprintf("groups of an earlier process %d, unproven %d, removals %d (oldest %v)", len(left), s.Unproven, s.Removing, s.OldestRemoval), ""
		if err != nil || s.Unproven > 0 || s.OldestRemoval > 30*time.Second || len(left) > 0 && c.Subreaper {
			warning = "run eda-sidecar recover; look at the processes in " + c.Dir
		}
		add(true, "leftovers", found, warning)
	}
	return all
}

// lacks says what a Landlock ABI does not cover.
func lacks(abi int) (text string) {
	for since, what := range [...]string{4: "TCP", 5: "device ioctls", 6: "abstract sockets and signals", 9: "pathname sockets"} {
		if abi < since && what != "" {
			text += ", does not cover " + what
		}
	}
	return text
}

// reachableSockets lists sockets of services that start processes for whoever may write to them.
func reachableSockets() (found []string) {
	for _, pattern := range []string{
		"/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
		"/run/dbus/system_bus_socket", "/run/user/*/bus", "/run/user/*/systemd/private", "/run/user/*/podman/podman.sock",
	} {
		paths, _ := filepath.Glob(pattern) // the pattern is well-formed
		for _, p := range paths {
			if unix.Access(p, unix.W_OK) == nil {
				found = append(found, p)
			}
		}
	}
	return found
}
