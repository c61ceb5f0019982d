package job

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
)

// limited is a tool of one script with an output, a job directory of 1 MiB and a log of 64 KiB.
func limited(text string) *adapters.Tool {
	t := newTool([]adapters.Param{output("a", adapters.KindFile)}, func(a adapters.Args) []adapters.Step {
		s := script("one", text)
		s.Env = []string{"A=" + a.Staged("a")}
		return []adapters.Step{s}
	})
	t.Limits.StagingBytes, t.Limits.LogBytes = 1<<20, 64<<10
	return t
}

// TestOutputLimit stops tools that write too much: while they run, at the inspection, by the kernel, and in the log that
// the verdict is counted from. The controls write less, or count nothing.
func TestOutputLimit(t *testing.T) {
	const files = "for i in 1 2 3 4 5 6; do head -c 500000 /dev/zero > f$i; done; echo new > $A; "
	flood := limited("head -c 200000 /dev/zero | tr '\\0' x; echo new > $A")
	evidence := limited("head -c 200000 /dev/zero | tr '\\0' x; echo new > $A")
	evidence.LogIsEvidence = true
	short := limited("echo little; echo new > $A")
	short.LogIsEvidence = true
	for _, tt := range []struct {
		name string
		tool *adapters.Tool
		want Code
		says string
	}{
		{"running", limited(files + "sleep 300"), OutputLimit, "more than"},
		{"inspected", limited(files), OutputLimit, "more than"},
		{"one_file", limited("sleep 0.1; head -c 1500000 /dev/zero > $A"), OutputLimit, "one file"},
		{"one_file_of_the_leader", limited("sleep 0.1; exec head -c 1500000 /dev/zero > $A"), OutputLimit, "one file"},
		{"log_is_evidence", evidence, OutputLimit, "log"},
		{"log_is_not", flood, OK, ""},
		{"little", short, OK, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, parts{})
			r.write("a", "old")
			res := r.want(r.with(tt.tool, "a"), tt.want)
			if !strings.Contains(res.Message, tt.says) || (r.read("a") == "old") != (tt.want != OK) {
				t.Errorf("%q, target %.20q", res.Message, r.read("a"))
			}
			if tt.want != OK {
				r.order(res.Job, failedOrder)
			}
			if strings.HasPrefix(tt.name, "log") {
				if l := res.Log; !l.Truncated || l.Bytes != 200000 || len(l.Head) > 64<<10 || len(l.Tail) > 64<<10 || len(l.Tail) == 0 {
					t.Errorf("log of %d bytes, head %d, tail %d, truncated %t", l.Bytes, len(l.Head), len(l.Tail), l.Truncated)
				}
			}
		})
	}
}

// TestHostLimits lets the configuration of the host replace the limits of a tool.
func TestHostLimits(t *testing.T) {
	r := newRig(t, parts{o: Options{Limits: map[string]adapters.Limits{"test_tool": {Wall: 100 * time.Millisecond, StagingBytes: 2 << 20}}}})
	if res := r.run(r.with(limited("sleep 300"), "a")); res.Code != ToolTimeout {
		t.Errorf("the host's wall time: %s", res.Code)
	}
	if res := r.run(r.with(limited("head -c 1500000 /dev/zero > $A"), "a")); res.Code != OK {
		t.Errorf("the host's staging: %s %s", res.Code, res.Message)
	}
}

// TestHostCeiling holds the host's wall time over both of the tool's own: the smallest of config, tool and call wins.
func TestHostCeiling(t *testing.T) {
	for _, wall := range []time.Duration{5 * time.Second, 2 * time.Hour} { // the tool: 20 s, at most 1 m
		r := newRig(t, parts{o: Options{Limits: map[string]adapters.Limits{"test_tool": {Wall: wall}}}})
		tool := limited("echo new > $A")
		if l := r.Limits(tool); l.Wall != wall || l.WallMax != wall {
			t.Errorf("config %v: %v, at most %v", wall, l.Wall, l.WallMax)
		}
		req := r.with(tool, "a")
		req.Timeout = wall
		r.want(req, OK)
		req.Timeout++
		r.want(req, InvalidArgument)
	}
}

// TestKernelLimits gives the kernel's word on limits its code. The word is the test's: controllers may be bound elsewhere.
func TestKernelLimits(t *testing.T) {
	one := int64(1)
	for _, tt := range []struct {
		name, script string
		usage        cgroup.Usage
		want         Code
	}{
		{"memory", "echo new > {a}", cgroup.Usage{OOMKills: &one}, OutOfMemory},
		{"memory_and_failed", "exit 3 # {a}", cgroup.Usage{OOMKills: &one}, OutOfMemory},
		{"pids", "exit 3 # {a}", cgroup.Usage{PidsMax: &one}, ProcessLimit},
		{"pids_and_coped", "echo new > {a}", cgroup.Usage{PidsMax: &one}, OK},
		{"killed_by_somebody", "kill -9 $$ # {a}", cgroup.Usage{}, ToolFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, parts{groups: hooks{usage: func(u *cgroup.Usage) { u.OOMKills, u.PidsMax = tt.usage.OOMKills, tt.usage.PidsMax }}})
			res := r.want(r.sh(tt.script, "a=a"), tt.want)
			if tt.want != OK {
				r.order(res.Job, failedOrder)
			}
		})
	}
}

// finished counts what metrics are told.
type finished struct{ codes []Code }

func (f *finished) Finished(r Result, _ Times) { f.codes = append(f.codes, r.Code) }

// TestMetrics tells metrics of every call once.
func TestMetrics(t *testing.T) {
	f := &finished{}
	r := newRig(t, parts{o: Options{Metrics: f}})
	denied := r.sh("true")
	denied.Script = false
	for _, req := range []Request{r.sh("echo new > {a}", "a=a"), r.sh("exit 1"), denied} {
		r.run(req)
	}
	if want := []Code{OK, ToolFailed, Denied}; !slices.Equal(f.codes, want) {
		t.Errorf("told of %v, want %v", f.codes, want)
	}
}

// TestDenied refuses calls before they have any effect: one event with the code, no row, no directory, nothing held.
func TestDenied(t *testing.T) {
	many := func(r *rig) func() {
		release := r.hold(lock.Session(DefaultSession + "\x00" + me))
		done := make(chan struct{})
		for range 16 {
			go func() {
				if _, err := r.table.Acquire(done, lock.Request{Keys: []lock.Key{lock.Session(DefaultSession + "\x00" + me)}}); err == nil {
					t.Error("granted")
				}
			}()
		}
		until(t, "a full queue", func() bool { return r.table.Queued() == 16 })
		return func() {
			close(done)
			until(t, "an empty queue", func() bool { return r.table.Queued() == 0 })
			release()
		}
	}
	for _, tt := range []struct {
		name  string
		parts parts
		call  func(*rig) Request
		held  func(*rig) func() // what the call meets
		want  Code
	}{
		{name: "script", call: func(r *rig) Request {
			req := r.sh("true # {a}", "a=a")
			req.Script = false
			return req
		}, want: Denied},
		{name: "directory", call: func(r *rig) Request { r.write("a/b", ""); return r.sh("true # {a}", "a=a") }, want: InvalidArgument},
		{name: "link", call: func(r *rig) Request {
			ok(r.t, os.Symlink("/etc/passwd", r.dir+"/a"))
			return r.sh("true # {a}", "a=a")
		}, want: InvalidArgument},
		{name: "below_a_file", call: func(r *rig) Request { r.write("f", ""); return r.sh("true # {a}", "a=f/a") }, want: InvalidArgument},
		{name: "overlap", call: func(r *rig) Request { return r.sh("true # {a} {b}", "a=x", "b=x/y") }, want: InvalidArgument},
		{name: "timeout", call: func(r *rig) Request {
			req := r.sh("true # {a}", "a=a")
			req.Timeout = 48 * time.Hour
			return req
		}, want: InvalidArgument},
		{name: "unknown_session", call: func(r *rig) Request {
			req := r.sh("true # {a}", "a=a")
			req.Session = "0"
			return req
		}, want: SessionNotFound},
		{name: "another_owner", call: func(r *rig) Request {
			row, err := r.OpenSession(context.Background(), "somebody", "work")
			ok(r.t, err)
			req := r.sh("true # {a}", "a=a")
			req.Session = row.ID
			return req
		}, want: SessionNotFound},
		{name: "destroyed", call: func(r *rig) Request {
			row, err := r.OpenSession(context.Background(), me, "work")
			ok(r.t, err)
			ok(r.t, r.CloseSession(context.Background(), Who{Name: me}, row.ID))
			req := r.sh("true # {a}", "a=a")
			req.Session = row.ID
			return req
		}, want: SessionDestroyed},
		{name: "not_installed", call: func(r *rig) Request {
			tool, args, err := adapters.Command([]string{"no-such-program"}, nil, false)
			ok(r.t, err)
			return Request{Tool: tool, Args: args, Principal: me, Script: true}
		}, want: ToolNotInstalled},
		{name: "too_old", call: func(r *rig) Request {
			tool := limited("true")
			tool.Programs[0] = adapters.Program{Key: "sh", Names: []string{"sh"}, VersionArgs: []string{"-c", "echo version 1.2"}, Match: `version (\S+)`, Min: "1.3"}
			return r.with(tool, "a")
		}, want: ToolNotInstalled},
		{name: "no_group", parts: parts{groups: hooks{create: func(int) error { return unix.EROFS }}}, call: func(r *rig) Request { return r.sh("true # {a}", "a=a") }, want: ContainmentUnavailable},
		{name: "no_second_group", parts: parts{groups: hooks{create: func(step int) error {
			if step == 1 {
				return unix.EROFS
			}
			return nil
		}}}, call: func(r *rig) Request {
			return r.with(newTool([]adapters.Param{output("a", adapters.KindFile)}, func(adapters.Args) []adapters.Step {
				return []adapters.Step{script("one", "true"), script("two", "true")}
			}), "a")
		}, want: ContainmentUnavailable},
		{name: "volume_full", parts: parts{room: 1 << 50}, call: func(r *rig) Request { return r.sh("true # {a}", "a=a") }, want: WorkspaceFull},
		{
			name: "waited", parts: parts{o: Options{QueueTimeout: 20 * time.Millisecond}}, call: func(r *rig) Request { return r.sh("true # {a}", "a=a") },
			held: func(r *rig) func() { return r.hold(r.key("a")) }, want: Busy,
		},
		{name: "queue_full", call: func(r *rig) Request { return r.sh("true # {a}", "a=a") }, held: many, want: Busy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.parts)
			req := tt.call(r)
			release := func() {}
			if tt.held != nil {
				release = tt.held(r)
			}
			res := r.want(req, tt.want)
			release()
			r.settled()
			events := r.events(ledger.Query{Job: res.Job})
			if len(events) != 1 || events[0].Kind != "deny" || events[0].Data["code"] != string(tt.want) {
				t.Errorf("events %+v, want one denial with %s", events, tt.want)
			}
			if r.phase(res.Job) != "" || len(r.jobs()) > 0 || !res.RolledBack || res.Phase != "" || res.Hint == "" || res.Message == "" {
				t.Errorf("phase %q, left %v, result %+v", r.phase(res.Job), r.jobs(), res)
			}
			if len(r.table.Holders(lock.Key{})) > 0 || r.table.Queued() > 0 {
				t.Errorf("held %+v, %d queued", r.table.Holders(lock.Key{}), r.table.Queued())
			}
		})
	}
}

// TestBusyNamesTheHolder says who is in the way, to its own principal alone.
func TestBusyNamesTheHolder(t *testing.T) {
	r := newRig(t, parts{o: Options{QueueTimeout: time.Millisecond}})
	defer r.hold(r.key("a"))()
	mine := r.want(r.sh("true # {a}", "a=a"), Busy)
	req := r.sh("true # {a}", "a=a")
	req.Principal = "somebody"
	theirs := r.want(req, Busy)
	if !strings.Contains(mine.Message, "holder") || !strings.Contains(mine.Message, "blocker") || strings.Contains(theirs.Message, "holder") || !strings.Contains(theirs.Message, "blocker") {
		t.Errorf("mine %q, theirs %q", mine.Message, theirs.Message)
	}
}

// TestDenialsAreLimited writes no more than ten denials a second for one principal, and all of another's.
func TestDenialsAreLimited(t *testing.T) {
	const burst = 50
	r := newRig(t, parts{})
	began := time.Now()
	for range burst {
		req := r.sh("true")
		req.Script = false
		r.want(req, Denied)
	}
	seconds := int(time.Since(began)/time.Second) + 2
	req := r.sh("true")
	req.Script, req.Principal = false, "somebody"
	r.want(req, Denied)
	r.settled()
	mine, theirs := r.events(ledger.Query{Principal: me}), r.events(ledger.Query{Principal: "somebody"})
	if len(mine) < 10 || len(mine) > 10*seconds || len(mine) == burst || len(theirs) != 1 {
		t.Errorf("%d and %d denials", len(mine), len(theirs))
	}
}

// TestStartFails undoes a call whose program cannot be started, with the code of the reason.
func TestStartFails(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Code
	}{
		{&cgroup.StartError{Op: "stat", Path: "/x", Err: os.ErrNotExist}, ToolNotInstalled},
		{&cgroup.StartError{Op: "exec", Path: "/x", Err: unix.EACCES}, ToolNotInstalled},
		{&cgroup.StartError{Op: "start", Path: "/x", Err: cgroup.ErrFrozen}, Internal},
		{&cgroup.StartError{Op: "thread", Path: "/x", Err: unix.EAGAIN}, Internal},
	} {
		t.Run(fmt.Sprint(tt.err), func(t *testing.T) {
			r := newRig(t, parts{groups: hooks{start: func(int, cgroup.Command) error { return tt.err }}})
			r.write("a", "old")
			res := r.want(r.sh("echo new > {a}", "a=a"), tt.want)
			r.order(res.Job, "allow error rollback")
			if r.read("a") != "old" || len(r.jobs()) > 0 || !res.RolledBack {
				t.Errorf("target %q, left %v, result %+v", r.read("a"), r.jobs(), res)
			}
		})
	}
}
