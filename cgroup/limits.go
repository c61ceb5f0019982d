package cgroup

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Limits bounds one group. The zero value bounds nothing. Of Resources, memory (limit, swap, reservation), cpu, pids and
// block I/O throttling are used. Swap is memory plus swap, as in the runtime specification: Swap == Limit forbids swap.
type Limits struct {
	Resources specs.LinuxResources
}

// limit writes the limits and reads each back: one that the kernel dropped or changed is an error. Those that cannot be
// set here are listed in g.unlimited. The library's Update writes by path and with O_CREAT; this writes as everything here does.
func (g *Group) limit(l Limits) error {
	for _, s := range settings(l) {
		if !existsAt(fd(g.dir), s.file) {
			g.unlimited = append(g.unlimited, s.file)
			continue
		}
		if err := writeAt(fd(g.dir), s.file, s.value); err != nil {
			return err
		}
		text, err := readAt(fd(g.dir), s.file)
		if err != nil {
			return err
		}
		if !s.holds(strings.TrimSpace(text)) && !g.p.o.off.readBack {
			return fmt.Errorf("%s is %q, not %q: %w", s.file, text, s.value, ErrLimits)
		}
	}
	g.unlimited = slices.Compact(g.unlimited)
	if len(g.unlimited) > 0 && g.p.o.LimitsRequired {
		return fmt.Errorf("limits %s: %w", strings.Join(g.unlimited, " "), ErrLimits)
	}
	return nil
}

// setting is one limit, as it is written and as it must read back.
type setting struct{ file, value string }

// settings turns limits into what the kernel's files take, by the library's rules for the runtime specification.
func settings(l Limits) (all []setting) {
	r := cgroup2.ToResources(&l.Resources)
	number := func(file string, v *int64, unit int64) {
		if v != nil && *v < 0 {
			all = append(all, setting{file, "max"})
		} else if v != nil {
			all = append(all, setting{file, strconv.FormatInt(*v/unit*unit, 10)})
		}
	}
	if m := r.Memory; m != nil {
		page := int64(unix.Getpagesize()) // the kernel counts pages
		number("memory.max", m.Max, page)
		number("memory.swap.max", m.Swap, page)
		number("memory.low", m.Low, page)
		if m.Max != nil { // a partial OOM kill cannot leave a half-written success
			all = append(all, setting{"memory.oom.group", "1"})
		}
	}
	if c := r.CPU; c != nil {
		if c.Weight != nil {
			all = append(all, setting{"cpu.weight", strconv.FormatUint(*c.Weight, 10)})
		}
		if quota := l.Resources.CPU.Quota; quota != nil && *quota > 0 { // the library drops a quota without a period
			all = append(all, setting{"cpu.max", string(cgroup2.NewCPUMax(quota, l.Resources.CPU.Period))})
		}
	}
	if p := r.Pids; p != nil && p.Max != 0 {
		number("pids.max", &p.Max, 1)
	}
	if r.IO != nil {
		for _, e := range r.IO.Max {
			all = append(all, setting{"io.max", e.String()})
		}
	}
	return all
}

// holds reports whether the content of a file has the setting in force. io.max has a line for each device, "8:0 rbps=1 ...".
func (s setting) holds(text string) bool {
	if s.file != "io.max" {
		return text == s.value
	}
	device, limit, _ := strings.Cut(s.value, " ")
	return slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) > 0 && fields[0] == device && slices.Contains(fields[1:], limit)
	})
}
