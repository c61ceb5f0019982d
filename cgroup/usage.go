package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"
)

// Usage is what a group used. nil means that the kernel did not say: it is not 0.
type Usage struct {
	CPUSeconds            *float64 `json:"cpu_seconds,omitempty"`             // user and system
	ThrottledSeconds      *float64 `json:"cpu_throttled_seconds,omitempty"`   // held back by cpu.max
	MemoryPeakBytes       *int64   `json:"memory_peak_bytes,omitempty"`       // memory.peak
	PidsPeak              *int64   `json:"pids_peak,omitempty"`               // processes and threads at once
	IOReadBytes           *int64   `json:"io_read_bytes,omitempty"`           // all devices
	IOWriteBytes          *int64   `json:"io_write_bytes,omitempty"`          // all devices
	OOMKills              *int64   `json:"oom_kills,omitempty"`               // processes killed for lack of memory; > 0 is OUT_OF_MEMORY
	OOMGroupKills         *int64   `json:"oom_group_kills,omitempty"`         // kills of the whole group
	PidsMax               *int64   `json:"pids_max_events,omitempty"`         // forks refused by pids.max; with a failure PROCESS_LIMIT
	CPUPressureSeconds    *float64 `json:"cpu_pressure_seconds,omitempty"`    // some task waited for a CPU
	MemoryPressureSeconds *float64 `json:"memory_pressure_seconds,omitempty"` // some task waited for memory
	IOPressureSeconds     *float64 `json:"io_pressure_seconds,omitempty"`     // some task waited for a disk
	Unlimited             []string `json:"unlimited,omitempty"`               // limits that were asked for but cannot be set here, by file name
}

// Usage reads what the group used: after the proof, for it to be final, and before Remove, because a removed group
// answers nothing. Units: microseconds in cpu.stat and *.pressure become seconds.
func (g *Group) Usage() (Usage, error) {
	u := Usage{Unlimited: g.unlimited}
	g.mu.Lock() // Remove waits
	defer g.mu.Unlock()
	if g.gone {
		return u, fmt.Errorf("read usage of group %q: %w", g.ref.Path, fs.ErrClosed)
	}
	have := func(name string) bool { return existsAt(fd(g.dir), name) }
	mask := cgroup2.StatCPU | cgroup2.StatMemoryEvents | cgroup2.StatIO
	if have("memory.stat") {
		mask |= cgroup2.StatMemory
	}
	// The library takes only paths; this one no rename or removal can bend.
	manager, err := cgroup2.Load("/", cgroup2.WithMountpoint("/proc/self/fd/"+strconv.Itoa(fd(g.dir))))
	if err != nil {
		return u, err
	}
	m, err := manager.StatFiltered(mask)
	if err != nil {
		return u, fmt.Errorf("read usage of group %q: %w", g.ref.Path, err)
	}
	// The library turns what it cannot read into 0, so each value needs its file.
	if have("cpu.stat") {
		u.CPUSeconds = seconds(m.CPU.UsageUsec)
		if m.CPU.NrPeriods > 0 {
			u.ThrottledSeconds = seconds(m.CPU.ThrottledUsec)
		}
	}
	if have("memory.peak") && m.Memory != nil {
		u.MemoryPeakBytes = integer(m.Memory.MaxUsage)
	}
	if e := m.MemoryEvents; e != nil {
		u.OOMKills, u.OOMGroupKills = integer(e.OomKill), integer(e.OomGroupKill)
	}
	if have("io.stat") {
		var read, written uint64
		for _, d := range m.Io.Usage {
			read, written = read+d.Rbytes, written+d.Wbytes
		}
		u.IOReadBytes, u.IOWriteBytes = integer(read), integer(written)
	}
	u.CPUPressureSeconds = pressure(m.CPU.PSI)
	u.IOPressureSeconds = pressure(m.Io.PSI)
	if m.Memory != nil {
		u.MemoryPressureSeconds = pressure(m.Memory.PSI)
	}
	// The library does not read these.
	peak, errPeak := readAt(fd(g.dir), "pids.peak")
	if n, err := strconv.ParseInt(strings.TrimSpace(peak), 10, 64); errors.Join(errPeak, err) == nil {
		u.PidsPeak = &n
	}
	text, errEvents := readAt(fd(g.dir), "pids.events")
	if kv, err := keyValues(text); errors.Join(errEvents, err) == nil {
		n := kv["max"]
		u.PidsMax = &n
	}
	return u, nil
}

func seconds(usec uint64) *float64 {
	s := float64(usec) / 1e6
	return &s
}

func integer(v uint64) *int64 {
	n := int64(v)
	return &n
}

func pressure(psi *stats.PSIStats) *float64 {
	if psi == nil || psi.Some == nil {
		return nil
	}
	return seconds(psi.Some.Total)
}
