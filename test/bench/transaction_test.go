package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
	"github.com/eda-sidecar/eda-sidecar/test/bench/sample"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const outputBytes = 4 << 10

// engine is the product from admission to release on a disk, with groups in which nothing has to be started: the tool has
// written its outputs, 4 KiB each, the moment it is asked to.
type engine struct {
	*job.Runner
	t              testing.TB
	dir            string
	syncs, commits atomic.Int64 // of the workspace; of the ledger
	proven         atomic.Value // time.Time of the last proof, and
	before         atomic.Int64 // syncs and commits up to then
	committed      chan acknowledged
}

// acknowledged is a commit as the ledger tells of it.
type acknowledged struct {
	at    time.Time
	syncs int64 // and commits since the proof
}

func newEngine(b *testing.B) *engine {
	dir := b.TempDir()
	e := &engine{t: b, dir: dir, committed: make(chan acknowledged, 1)}
	ok(b, os.Mkdir(filepath.Join(dir, "build"), 0o755))
	counting := durabletest.Wrap(durable.OS(), func(op durabletest.Op, do func() error) error {
		if op.Method == "Sync" {
			e.syncs.Add(1)
		}
		return do()
	})
	files, err := txn.Open(counting, dir, txn.Options{ToolUID: -1, ToolGID: -1})
	ok(b, err)
	l, err := ledger.Open(b.Context(), ledger.Options{
		Dir: filepath.Join(dir, ".eda-sidecar", "state"),
		Fault: func(point string) error {
			if point == "after COMMIT" {
				e.commits.Add(1)
			}
			return nil
		},
		Sinks: []func(audit.Event){func(ev audit.Event) {
			if ev.Kind == audit.Commit {
				select {
				case e.committed <- acknowledged{time.Now(), e.syncs.Load() + e.commits.Load() - e.before.Load()}:
				default: // nobody asks
				}
			}
		}},
	})
	ok(b, err)
	recycle(b, l)
	e.Runner = job.NewRunner(files, dir, l, stage{e}, lock.New(lock.Options{}), job.Options{ToolUID: -1, ToolGID: -1})
	b.Cleanup(func() {
		e.Close()
		ok(b, l.Close(context.Background()))
		ok(b, files.Close())
	})
	return e
}

// recycle lets the ledger's log begin anew once: overwriting it costs less than letting it grow.
func recycle(t testing.TB, l *ledger.Ledger) {
	for i := range 300 {
		ticket, err := l.SetAgent(fmt.Sprint(i))
		ok(t, err)
		<-ticket.Done()
		ok(t, ticket.Err())
	}
}

// call runs one call that publishes n files under a prefix.
func (e *engine) call(session, prefix string, n int) {
	argv, outs := []string{"true"}, []adapters.Out(nil)
	for i := range n {
		name := fmt.Sprintf("o%d", i)
		argv, outs = append(argv, "{"+name+"}"), append(outs, adapters.Out{Name: name, Target: fmt.Sprintf("build/%s%d", prefix, i)})
	}
	tool, args, err := adapters.Command(argv, outs, false)
	if err == nil {
		res := e.Run(context.Background(), job.Request{Tool: tool, Args: args, Digest: job.Digest(argv), Session: session, Principal: "bench", Script: true})
		if res.Code != job.OK {
			err = fmt.Errorf("%s: %s", res.Code, res.Message)
		}
	}
	if err != nil { // of any goroutine
		panic(err)
	}
}

// stage makes groups without processes.
type stage struct{ e *engine }

type staged struct {
	stage
	ref cgroup.Ref
}

func (s stage) Create(_ context.Context, id string, _ int, _ cgroup.Limits) (job.Group, error) {
	return staged{s, cgrouptest.Ref(id)}, nil
}
func (s stage) Sweep(g job.Group, proved func(cgroup.Empty)) { proved(cgrouptest.Empty(g.Ref())) }
func (s stage) Capabilities() cgroup.Capabilities            { return cgroup.Capabilities{LandlockABI: 3} }

func (g staged) Ref() cgroup.Ref { return g.ref }
func (g staged) Start(_ context.Context, c cgroup.Command) (job.Process, error) {
	for _, dir := range c.Sandbox.Job {
		if strings.HasPrefix(filepath.Base(dir), "s") {
			ok(g.e.t, os.WriteFile(filepath.Join(dir, "out"), make([]byte, outputBytes), 0o644))
		}
	}
	return g, nil
}
func (g staged) PID() int { return 1 }
func (g staged) Wait(context.Context) (cgroup.Exit, error) {
	return cgroup.Exit{At: time.Now(), Cause: cgroup.Exited}, nil
}
func (g staged) Output() cgroup.Output { return cgroup.Output{} }
func (g staged) Kill(context.Context) (cgroup.Descendants, error) {
	return cgroup.Descendants{}, nil
}

func (g staged) WaitEmpty(context.Context) (cgroup.Empty, error) {
	g.e.before.Store(g.e.syncs.Load() + g.e.commits.Load())
	g.e.proven.Store(time.Now())
	return cgrouptest.Empty(g.ref), nil
}

func (g staged) Terminate(ctx context.Context, _ time.Duration) (cgroup.Empty, error) {
	return g.WaitEmpty(ctx)
}
func (g staged) Usage() (cgroup.Usage, error) { return cgroup.Usage{}, nil }
func (g staged) Remove(cgroup.Empty)          {}

// floor is the plain program: the same objects are made dirty and synced in the same barriers.
type floor struct {
	t    testing.TB
	dir  string
	pool durable.FS
	log  chan chan struct{}
}

func newFloor(b *testing.B) *floor {
	f := &floor{t: b, dir: b.TempDir(), pool: durable.OS(), log: make(chan chan struct{}, 64)}
	for _, dir := range []string{"build", "jobs"} {
		ok(b, os.Mkdir(filepath.Join(f.dir, dir), 0o755))
	}
	log, err := os.Create(filepath.Join(f.dir, "log"))
	ok(b, err)
	ended := make(chan struct{})
	go func() { // all that wait when a sync ends share the next one
		defer close(ended)
		for first := range f.log {
			batch := []chan struct{}{first}
			for more := true; more; {
				select {
				case next, open := <-f.log:
					if more = open; open {
						batch = append(batch, next)
					}
				default:
					more = false
				}
			}
			_, err := log.Write(make([]byte, 512*len(batch)))
			ok(f.t, err)
			ok(f.t, log.Sync())
			for _, done := range batch {
				close(done)
			}
		}
	}()
	b.Cleanup(func() {
		close(f.log)
		<-ended
		ok(b, log.Close())
	})
	return f
}

func (f *floor) append() error {
	done := make(chan struct{})
	f.log <- done
	<-done
	return nil
}

func (f *floor) sync(path string) func() error {
	return func() error {
		h, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := h.Sync(); err != nil {
			return err
		}
		return h.Close()
	}
}

// begin is what comes before the tool ends: the first sync of the log, a directory, the outputs.
func (f *floor) begin(id string, n int) {
	ok(f.t, f.append())
	ok(f.t, os.MkdirAll(filepath.Join(f.dir, "jobs", id, "s"), 0o755))
	for i := range n {
		ok(f.t, os.WriteFile(filepath.Join(f.dir, "jobs", id, "s", fmt.Sprint(i)), make([]byte, outputBytes), 0o644))
	}
}

// publish is the rest, up to the commit.
func (f *floor) publish(id, prefix string, n int) {
	jobs, build := filepath.Join(f.dir, "jobs"), filepath.Join(f.dir, "build")
	dir := filepath.Join(jobs, id)
	barrier := []func() error{f.append, f.sync(dir), f.sync(jobs)}
	for i := range n {
		ok(f.t, os.Rename(filepath.Join(dir, "s", fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint(i))))
		barrier = append(barrier, f.sync(filepath.Join(dir, fmt.Sprint(i))))
	}
	ok(f.t, f.pool.Barrier("bench.b1", barrier...))
	for i := range n {
		target, staged := filepath.Join(build, prefix+fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint(i))
		err := unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE)
		if errors.Is(err, unix.ENOENT) { // the first time
			err = os.Rename(staged, target)
		}
		ok(f.t, err)
	}
	ok(f.t, f.pool.Barrier("bench.b2", f.sync(build), f.sync(dir)))
	ok(f.t, f.append())
}

// BenchmarkCommitDurable is from the proof of death to the acknowledged commit, and Floor(N,1,1).
func BenchmarkCommitDurable(b *testing.B) {
	for _, n := range []int{1, 10} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, f, m := newEngine(b), newFloor(b), sample.Modes{}
			e.call("", "t", n) // the targets exist
			<-e.committed
			var syncs []int64
			for i := 0; b.Loop(); i++ {
				id := fmt.Sprint(i)
				f.begin(id, n)
				m.Time("floor", func() { f.publish(id, "t", n) })
				e.call("", "t", n)
				ack := <-e.committed
				m["product"] = append(m["product"], ack.at.Sub(e.proven.Load().(time.Time)))
				syncs = append(syncs, ack.syncs)
			}
			m.Report(b)
			slices.Sort(syncs)
			b.ReportMetric(float64(syncs[len(syncs)/2]), "syncs") // now and then the ledger flushes what rides
		})
	}
}

// BenchmarkSessions is whole calls of 8 sessions at once, from admission to release, and Floor(1,1,8).
func BenchmarkSessions(b *testing.B) {
	const sessions, calls = 8, 5
	e, f := newEngine(b), newFloor(b)
	ids := make([]string, sessions)
	for s := range ids {
		row, err := e.OpenSession(b.Context(), "bench", fmt.Sprint("s", s))
		ok(b, err)
		ids[s] = row.ID
	}
	together := func(call func(s, i int)) time.Duration {
		began := time.Now()
		var all sync.WaitGroup
		for s := range sessions {
			all.Go(func() {
				for i := range calls {
					call(s, i)
				}
			})
		}
		all.Wait()
		return time.Since(began)
	}
	var product, floor time.Duration
	before, n := e.commits.Load(), 0
	for ; b.Loop(); n++ {
		floor += together(func(s, i int) {
			id := fmt.Sprintf("%d-%d-%d", s, n, i)
			f.begin(id, 1)
			f.publish(id, fmt.Sprintf("s%d-", s), 1)
		})
		product += together(func(s, _ int) { e.call(ids[s], fmt.Sprintf("s%d-", s), 1) })
	}
	total := float64(n * sessions * calls)
	b.ReportMetric(total/product.Seconds(), "product-per-s")
	b.ReportMetric(total/floor.Seconds(), "floor-per-s")
	b.ReportMetric(3*total/float64(e.commits.Load()-before), "ops-per-COMMIT")
}

// seal brings a job to the point where its output can change places with target; fill writes it.
func seal(t testing.TB, w *txn.Workspace, id, target string, fill func(path string)) (*txn.Txn, *txn.Admission, []*txn.Journal) {
	a, err := w.Admit([]txn.Spec{{Name: "out", Target: target, Kind: txn.File}})
	ok(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ok(t, err)
	j := &txn.Journal{
		Version: 1, Job: id, Session: "s", Tool: "bench", Principal: "bench", LandlockABI: 3, BootID: strings.TrimSpace(string(boot)),
		NewGen: 1, Groups: []cgroup.Ref{cgrouptest.Ref(id)}, Outputs: a.Outputs(id),
	}
	tx, err := w.Begin(j, a, txn.BeginOptions{})
	ok(t, err)
	fill(filepath.Join(tx.Dir(), "s0", "out"))
	_, err = tx.Inspect(proof(id), txn.Quotas{})
	ok(t, err)
	sealed, err := tx.Seal()
	ok(t, err)
	return tx, a, []*txn.Journal{j, sealed}
}

func proof(id string) []cgroup.Empty { return []cgroup.Empty{cgrouptest.Empty(cgrouptest.Ref(id))} }

// BenchmarkExchange lets a target and a staged output change places, synced: one of 4 KiB, and one of 1 GiB, or of an eighth
// of the free space.
func BenchmarkExchange(b *testing.B) {
	dir := b.TempDir()
	var st unix.Statfs_t
	ok(b, unix.Statfs(dir, &st))
	sizes := map[string]int64{"small": outputBytes, "big": min(1<<30, int64(st.Bavail)*st.Bsize/8) &^ (1<<20 - 1)}
	var data atomic.Int64
	fs := durable.OS()
	counting := durabletest.Wrap(fs, func(op durabletest.Op, do func() error) error {
		if op.Method == "ReadAt" || op.Method == "WriteAt" && op.Site != "txn.note.write" { // recovery.json
			data.Add(1)
		}
		return do()
	})
	w, err := txn.Open(counting, dir, txn.Options{ToolUID: -1, ToolGID: -1})
	ok(b, err)
	m, txs := sample.Modes{}, map[string]*txn.Txn{}
	for mode, size := range sizes {
		ok(b, os.WriteFile(filepath.Join(dir, mode), []byte("old"), 0o644))
		tx, a, _ := seal(b, w, mode, mode, func(path string) {
			f, err := os.Create(path)
			ok(b, err)
			for block := make([]byte, min(size, 1<<20)); size > 0; size -= int64(len(block)) {
				_, err := f.Write(block)
				ok(b, err)
			}
			ok(b, f.Close())
		})
		ok(b, tx.SyncStaged(proof(mode), nil))
		txs[mode] = tx
		defer a.Close()
	}
	data.Store(0)
	for b.Loop() {
		for mode, tx := range txs {
			m.Time(mode, func() {
				ok(b, tx.Exchange(proof(mode)))
				ok(b, tx.SyncTargets())
			})
			back := filepath.Join(tx.Dir(), "o0")
			ok(b, unix.Renameat2(unix.AT_FDCWD, back, unix.AT_FDCWD, filepath.Join(dir, mode), unix.RENAME_EXCHANGE))
		}
	}
	m.Report(b)
	b.ReportMetric(float64(data.Load()), "data-ops")
	b.ReportMetric(float64(sizes["big"]>>20), "MiB")
	for _, tx := range txs {
		ok(b, tx.Close())
	}
	ok(b, w.Close())
}

// BenchmarkRecover is what the built program needs for 1000 jobs in publishing_outputs beyond its start on a workspace with
// nothing to do, and the same work done plainly.
func BenchmarkRecover(b *testing.B) {
	const jobs, few = 1000, 100
	p := program(b)
	var product, floor time.Duration
	var more int64
	for b.Loop() {
		dir := abandoned(b, jobs)
		floor += plainUndo(b, b.TempDir(), jobs)
		took, peak := recoverIn(b, p, dir)
		idle, idlePeak := recoverIn(b, p, dir)
		product, more = product+took-idle, max(more, peak-idlePeak)
	}
	dir := abandoned(b, few)
	transactions := walSyncs(b, p, dir)
	transactions -= walSyncs(b, p, dir) // with nothing to do
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N*jobs) }
	b.ReportMetric(per(product), "product-us")
	b.ReportMetric(per(floor), "floor-us")
	b.ReportMetric(float64(more)/1024, "MiB-more")
	b.ReportMetric(float64(transactions), "transactions")
}

// abandoned makes a workspace on which an engine ended when n jobs had exchanged their output and not committed.
func abandoned(b *testing.B, n int) string {
	dir := b.TempDir()
	ok(b, os.Mkdir(filepath.Join(dir, "build"), 0o755))
	if out, err := exec.Command(program(b), "recover", "-w", dir).CombinedOutput(); err != nil { // makes the ledger
		b.Fatalf("%v, %s", err, out)
	}
	w, err := txn.Open(durable.OS(), dir, txn.Options{ToolUID: -1, ToolGID: -1})
	ok(b, err)
	l, err := ledger.Open(b.Context(), ledger.Options{Dir: filepath.Join(dir, ".eda-sidecar", "state")})
	ok(b, err)
	var last *ledger.Ticket
	for i := range n {
		id, target := fmt.Sprintf("job-%04d", i), fmt.Sprintf("build/%d", i)
		ok(b, os.WriteFile(filepath.Join(dir, target), []byte("old"), 0o644))
		tx, a, journals := seal(b, w, id, target, func(path string) { ok(b, os.WriteFile(path, []byte("new"), 0o644)) })
		event := func(k audit.Kind) audit.Event {
			return audit.Event{Kind: k, Job: id, Session: "s", Tool: "bench", Principal: "bench"}
		}
		_, err := l.Begin(journals[0], event(audit.Allow))
		ok(b, err)
		last, err = l.Publishing(journals[1], event(audit.Start))
		ok(b, err)
		ok(b, tx.Exchange(proof(id)))
		ok(b, tx.Close())
		a.Close()
	}
	<-last.Done()
	ok(b, last.Err())
	ok(b, l.Close(context.Background()))
	ok(b, w.Close())
	unix.Sync() // what was made is not what is measured
	return dir
}

// plainUndo times an exchange and two parallel syncs of directories, n times.
func plainUndo(t testing.TB, dir string, n int) (took time.Duration) {
	f := &floor{t: t, dir: dir, pool: durable.OS()}
	build := filepath.Join(dir, "build")
	ok(t, os.Mkdir(build, 0o755))
	for i := range n {
		job := filepath.Join(dir, fmt.Sprint("job", i))
		staged, target := filepath.Join(job, "o0"), filepath.Join(build, fmt.Sprint(i))
		ok(t, os.Mkdir(job, 0o755))
		ok(t, os.WriteFile(staged, []byte("old"), 0o644))
		ok(t, os.WriteFile(target, []byte("new"), 0o644))
		ok(t, f.pool.Barrier("bench.made", f.sync(staged), f.sync(target), f.sync(build), f.sync(job)))
		began := time.Now()
		ok(t, unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE))
		ok(t, f.pool.Barrier("bench.undo", f.sync(build), f.sync(job)))
		took += time.Since(began)
	}
	return took
}

// recoverIn runs `recover` and says how long it took and what memory it had at most, in KiB.
func recoverIn(b *testing.B, program, dir string) (took time.Duration, peak int64) {
	c := exec.Command(program, "recover", "-w", dir)
	began := time.Now()
	ok(b, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for { // rusage would count the parent's memory, too
		select {
		case err := <-ended:
			ok(b, err)
			return time.Since(began), peak
		case <-time.After(5 * time.Millisecond):
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid)) // it may be gone
			_, text, _ := strings.Cut(string(status), "VmHWM:")
			var now int64
			if _, err := fmt.Sscan(text, &now); err == nil {
				peak = max(peak, now)
			}
		}
	}
}

// walSyncs counts how often `recover` syncs the ledger's log.
func walSyncs(b *testing.B, program, dir string) int {
	trace := filepath.Join(b.TempDir(), "trace")
	out, err := exec.Command("strace", "-f", "-y", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o", trace, program, "recover", "-w", dir).CombinedOutput()
	if err != nil {
		b.Fatalf("strace: %v, %s", err, out)
	}
	text, err := os.ReadFile(trace)
	ok(b, err)
	return len(regexp.MustCompile(`sync\(\d+<[^>]*ledger\.db-wal>`).FindAll(text, -1))
}
