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

// setting is one limit as it must read back.
type setting struct {
	file, value string
}

// limit writes the limits, reads each back, and lists in g.unlimited those that cannot be set here.
func (g *Group) limit(l Limits) error {
	have := func(name string) bool { return existsAt(fd(g.dir), name) }
	r := cgroup2.ToResources(&l.Resources)
	r.Devices, r.RDMA, r.HugeTlb = nil, nil, nil
	if r.CPU != nil {
		r.CPU.Cpus, r.CPU.Mems = "", "" // cpuset is not ours
		if l.Resources.CPU.Quota != nil && r.CPU.Max == "" {
			r.CPU.Max = cgroup2.NewCPUMax(l.Resources.CPU.Quota, nil) // the library wants a period too
		}
	}
	if r.Memory != nil && r.Memory.Max != nil {
		yes := true
		r.Memory.OOMGroup = &yes // a partial OOM kill cannot leave a half-written success
	}
	wanted := settings(r)
	var missing []string
	for _, s := range wanted {
		if !have(s.file) {
			missing = append(missing, s.file)
		}
	}
	g.unlimited = slices.Compact(missing)
	if len(missing) > 0 && g.p.o.LimitsRequired {
		return fmt.Errorf("limits %s: %w", strings.Join(g.unlimited, " "), ErrLimits)
	}
	drop(r, g.unlimited)
	manager, err := cgroup2.Load("/", cgroup2.WithMountpoint(procFD(g)))
	if err != nil {
		return err
	}
	if err := manager.Update(r); err != nil {
		return fmt.Errorf("write limits: %w", err)
	}
	return g.readBack(settings(r))
}

// procFD is a path to the group's directory that no rename or removal can bend, for the library, which takes only paths.
func procFD(g *Group) string { return "/proc/self/fd/" + strconv.Itoa(fd(g.dir)) }

// settings lists the files that Update writes, with the values that the kernel shows afterwards.
func settings(r *cgroup2.Resources) (all []setting) {
	add := func(file, value string) { all = append(all, setting{file, value}) }
	number := func(file string, v *int64) {
		switch {
		case v == nil:
		case *v < 0:
			add(file, "max")
		default:
			page := int64(unix.Getpagesize())
			add(file, strconv.FormatInt(*v/page*page, 10)) // the kernel counts pages
		}
	}
	if m := r.Memory; m != nil {
		number("memory.swap.max", m.Swap)
		number("memory.max", m.Max)
		number("memory.low", m.Low)
		if m.OOMGroup != nil {
			add("memory.oom.group", "1")
		}
	}
	if c := r.CPU; c != nil {
		if c.Weight != nil {
			add("cpu.weight", strconv.FormatUint(*c.Weight, 10))
		}
		if c.Max != "" {
			add("cpu.max", string(c.Max))
		}
	}
	if p := r.Pids; p != nil && p.Max != 0 {
		if p.Max < 0 {
			add("pids.max", "max")
		} else {
			add("pids.max", strconv.FormatInt(p.Max, 10))
		}
	}
	if i := r.IO; i != nil {
		for _, e := range i.Max {
			add("io.max", e.String())
		}
	}
	return all
}

// drop takes out of r what has no file: Update writes with O_CREAT, for which an absent file is EACCES.
func drop(r *cgroup2.Resources, missing []string) {
	gone := func(file string) bool { return slices.Contains(missing, file) }
	if m := r.Memory; m != nil {
		if gone("memory.swap.max") {
			m.Swap = nil
		}
		if gone("memory.max") {
			r.Memory = nil
		}
	}
	if r.CPU != nil && (gone("cpu.weight") || gone("cpu.max")) {
		r.CPU = nil
	}
	if gone("pids.max") {
		r.Pids = nil
	}
	if gone("io.max") {
		r.IO = nil
	}
	if r.IO != nil {
		r.IO.BFQ = cgroup2.BFQ{} // io.bfq.weight exists only under one scheduler
	}
}

// readBack compares what the kernel holds with what was written: a limit that was dropped silently is an error.
func (g *Group) readBack(wanted []setting) error {
	if g.p.o.off.readBack {
		return nil
	}
	for _, s := range wanted {
		text, err := readAt(fd(g.dir), s.file)
		if err != nil {
			return fmt.Errorf("read back limit: %w", err)
		}
		if !holds(strings.TrimSpace(text), s) {
			return fmt.Errorf("%s is %q, not %q: %w", s.file, strings.TrimSpace(text), s.value, ErrLimits)
		}
	}
	return nil
}

// holds reports whether the content of a file has the setting in force. io.max has a line for each device, "8:0 rbps=1 ...".
func holds(text string, s setting) bool {
	if s.file != "io.max" {
		return text == s.value
	}
	device, limit, _ := strings.Cut(s.value, " ")
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == device && slices.Contains(fields[1:], limit) {
			return true
		}
	}
	return false
}
