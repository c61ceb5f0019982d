package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// dying is the place where a child dies.
type dying struct {
	o orders

	mu sync.Mutex
	// guarded by mu
	armed bool
	ops   []string
	flush func()
	seen  bool // the statement of a fault
	done  bool
}

// at counts an operation of a class and dies if it is the one.
func (d *dying) at(class, what string, do func() error) error {
	d.mu.Lock()
	mine := class == d.o.Die && (d.armed || strings.HasPrefix(class, "recover"))
	if mine {
		d.ops = append(d.ops, what)
	}
	hit := mine && d.o.N == len(d.ops)
	d.mu.Unlock()
	if hit && !d.o.After {
		d.die()
	}
	err := do()
	if hit && d.o.After {
		d.die()
	}
	return err
}

// die ends the process, or keeps what the ledger is at this point.
func (d *dying) die() {
	if d.o.Copy != "" {
		fatal(os.CopyFS(d.o.Copy, os.DirFS(filepath.Join(d.o.Dir, ".eda-sidecar", "state"))))
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // of itself
	select {}
}

// mutating are the operations on files that change something.
var mutating = []string{"Create", "Mkdir", "Symlink", "Exchange", "Move", "Replace", "Unlink", "Rmdir", "Chmod", "Chown", "SetXattr", "WriteAt", "Sync"}

func (d *dying) fs(fs durable.FS) durable.FS {
	return durabletest.Wrap(fs, func(op durabletest.Op, do func() error) error {
		site := string(op.Site)
		class := "fs"
		if strings.HasPrefix(site, "txn.undo.") || strings.HasPrefix(site, "txn.trash.") || strings.HasPrefix(site, "txn.retire") || strings.HasPrefix(site, "txn.keep.") {
			class = "recover"
			if d.o.Die == "fs" {
				class = "fs"
			}
		}
		if !slices.Contains(mutating, op.Method) {
			return do()
		}
		return d.at(class, op.Method+" "+site, do)
	})
}

func (d *dying) fault(point string) error {
	if point == "before COMMIT" || point == "after COMMIT" {
		class := "commit"
		if d.o.Die == "recover_commit" {
			class = d.o.Die
		}
		_ = d.at(class, point, func() error { return nil }) // it dies, or nothing
	}
	return d.inject(point)
}

// inject gives the answer of SQLite that the orders want, once.
func (d *dying) inject(point string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	statement := d.o.Match != "" && d.armed && !d.done && strings.Contains(point, d.o.Match)
	switch {
	case statement && d.o.At == "statement" && strings.HasPrefix(point, "before "):
		d.done = true
		return sqlite(d.o.Code)
	case statement:
		d.seen = true
	case d.seen && !d.done && (d.o.At == "before_commit" && point == "before COMMIT" || d.o.At == "after_commit" && point == "after COMMIT"):
		d.done = true
		return sqlite(d.o.Code)
	}
	return nil
}

// waiting dies while a tool runs.
type waiting struct {
	job.Groups
	d *dying
}

type waitingGroup struct {
	job.Group
	d *dying
}

type waitingProcess struct {
	job.Process
	d *dying
}

func (w waiting) Create(ctx context.Context, name string, step int, l cgroup.Limits) (job.Group, error) {
	g, err := w.Groups.Create(ctx, name, step, l)
	return waitingGroup{g, w.d}, err
}

func (w waiting) Sweep(g job.Group, proved func(cgroup.Empty)) {
	w.Groups.Sweep(g.(waitingGroup).Group, proved)
}

func (g waitingGroup) Start(ctx context.Context, c cgroup.Command) (job.Process, error) {
	p, err := g.Group.Start(ctx, c)
	return waitingProcess{p, g.d}, err
}

func (p waitingProcess) Wait(ctx context.Context) (cgroup.Exit, error) {
	if p.d.o.Die == "wait" {
		for !strings.Contains(string(p.Output().Head), "running") { // until its tool is at work
			time.Sleep(time.Millisecond) // in the re-executed child
		}
		p.d.flush()
	}
	_ = p.d.at("wait", "wait", func() error { return nil }) // it dies, or nothing
	return p.Process.Wait(ctx)
}

// childMain is the work of the re-executed test binary.
func childMain(text string) {
	var o orders
	fatal(json.Unmarshal([]byte(text), &o))
	cfg, err := LoadConfig(Flags{Workspace: o.Dir})
	fatal(err)
	cfg.QueueTimeout = 50 * time.Millisecond
	d := &dying{o: o}
	ctx := context.Background()
	s, err := open(ctx, cfg, seams{fs: d.fs(durable.OS()), fault: d.fault, noReaper: true, groups: func(g job.Groups) job.Groups { return waiting{g, d} }})
	fatal(err)
	var rep report
	d.mu.Lock()
	d.flush = func() { fatal(durably(s.Ledger.SetAgent("none"))) } // what rides comes with it
	d.armed = true
	d.mu.Unlock()
	if o.Script != "" {
		rep.Result = s.Runner.Run(ctx, request(nil, o.Script, o.Outs))
		d.mu.Lock()
		d.armed = false
		rep.Ops = d.ops
		d.mu.Unlock()
		if o.Match != "" {
			rep.Second = s.Runner.Run(ctx, request(nil, strings.ReplaceAll(o.Script, "new", "second"), o.Outs))
		}
	} else {
		rep.Ops = d.ops
	}
	fatal(json.NewEncoder(os.Stdout).Encode(rep))
	fatal(s.groups.Close(ctx))
	os.Exit(0) // and leaves the ledger as a crash would
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}
