package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func allLimits() Limits {
	return Limits{specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(1<<30 + 5)), Swap: new(int64(1<<30 + 5))},
		CPU:    &specs.LinuxCPU{Quota: new(int64(150000)), Period: new(uint64(100000)), Shares: new(uint64(1024))},
		Pids:   &specs.LinuxPids{Limit: new(int64(300))},
		BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{
			func() (d specs.LinuxThrottleDevice) { d.Major, d.Minor, d.Rate = 8, 0, 1048576; return d }(),
		}},
	}}
}

// fakeGroup is a group in an ordinary directory: no kernel rounds or refuses there.
func fakeGroup(t *testing.T, files ...string) (*Group, string) {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		ok(t, os.WriteFile(filepath.Join(dir, f), nil, 0o644))
	}
	d, err := openDir(-1, dir)
	ok(t, err)
	t.Cleanup(func() { closeFile(d) })
	return &Group{p: &Parent{}, dir: d}, dir
}

var limitFiles = []string{"memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "cpu.weight", "pids.max", "io.max"}

func TestLimitsAreWrittenAndReadBack(t *testing.T) {
	g, dir := fakeGroup(t, limitFiles...)
	l := allLimits()
	ok(t, g.limit(l))
	for file, want := range map[string]string{"memory.max": "1073741824", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.max": "150000 100000", "pids.max": "300", "io.max": "8:0 rbps=1048576"} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", file, got, err, want)
		}
	}
	if len(g.unlimited) > 0 {
		t.Errorf("unlimited %v", g.unlimited)
	}
	ok(t, g.limit(Limits{}))
}

func TestDroppedLimitIsAnError(t *testing.T) {
	for _, file := range limitFiles {
		g, dir := fakeGroup(t, limitFiles...)
		ok(t, os.Remove(filepath.Join(dir, file)))
		ok(t, os.Symlink("/dev/null", filepath.Join(dir, file))) // takes the write and forgets it
		l := allLimits()
		if err := g.limit(l); !errors.Is(err, ErrLimits) {
			t.Errorf("%s dropped: %v", file, err)
		}
		g.p.o.off.readBack = true
		if err := g.limit(l); err != nil {
			t.Errorf("control: without the read-back %v", err)
		}
	}
}

func TestMissingControllers(t *testing.T) {
	g, _ := fakeGroup(t, "memory.max", "memory.oom.group", "pids.max")
	l := allLimits()
	ok(t, g.limit(l))
	if want := []string{"memory.swap.max", "cpu.weight", "cpu.max", "io.max"}; !slices.Equal(g.unlimited, want) {
		t.Errorf("unlimited %v, want %v", g.unlimited, want)
	}
	g.p.o.LimitsRequired = true
	g.unlimited = nil
	if err := g.limit(l); !errors.Is(err, ErrLimits) {
		t.Errorf("required: %v", err)
	}
}

func TestRoundingOfTheKernel(t *testing.T) {
	for _, c := range []struct {
		text string
		s    setting
		want bool
	}{
		{"max", setting{"memory.max", "max"}, true},
		{"4096", setting{"memory.max", "4096"}, true},
		{"8192", setting{"memory.max", "4096"}, false},
		{"8:0 rbps=1 wbps=max riops=max wiops=max\n8:16 rbps=2 wbps=max\n", setting{"io.max", "8:16 rbps=2"}, true},
		{"8:0 rbps=1\n", setting{"io.max", "8:16 rbps=1"}, false},
		{"8:0 rbps=11\n", setting{"io.max", "8:0 rbps=1"}, false},
	} {
		if got := c.s.holds(c.text); got != c.want {
			t.Errorf("%q holds %v: %v", c.text, c.s, got)
		}
	}
}

// On a host without controllers limits are listed, and refused when they are required.
func TestCreateWithLimits(t *testing.T) {
	w := newWorld(t, Options{})
	g, err := w.p.Create(t.Context(), "limits", 0, allLimits())
	ok(t, err)
	u, err := g.Usage()
	ok(t, err)
	if missing := len(w.p.caps.Missing) > 0; missing != (len(u.Unlimited) > 0) || u.CPUSeconds == nil {
		t.Errorf("%+v", u)
	}
	g.Remove(w.prove(g))
	if len(w.p.caps.Missing) > 0 {
		w.p.o.LimitsRequired = true
		if _, err := w.p.Create(t.Context(), "limits", 1, allLimits()); !errors.Is(err, ErrLimits) {
			t.Errorf("required: %v", err)
		}
		if _, err := Open(t.Context(), Options{Workspace: w.ws, LimitsRequired: true, NoReaper: true}); err == nil {
			t.Error("opened without the required controllers")
		}
	}
}

func TestOOMEndsTheWait(t *testing.T) {
	w := newWorld(t, Options{})
	g := w.create()
	events := filepath.Join(t.TempDir(), "memory.events")
	ok(t, os.WriteFile(events, []byte("low 0\noom 1\noom_kill 0\n"), 0o644))
	f, err := os.Open(events)
	ok(t, err)
	g.oom = f
	p, err := g.Start(t.Context(), w.command("sleep"))
	ok(t, err)
	printed(t, p, "ready")
	if p.oomKilled() {
		t.Error("the oom counter alone is no kill")
	}
	ok(t, os.WriteFile(events, []byte("low 0\noom 1\noom_kill 1\n"), 0o644))
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Cause != OOM || exit.Code != -1 || !exit.At.IsZero() {
		t.Errorf("%+v, %v", exit, err)
	}
	w.prove(g)
}
