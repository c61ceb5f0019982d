package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// acked is what a client of a session has been told.
type acked struct {
	mu      sync.Mutex
	version map[string]int64 // by session: the highest that was acknowledged; guarded by mu
}

// TestServerKilled kills a server at random moments of concurrent calls: some commit, some fail, some are cancelled, some
// leave daemons; they share sessions and targets. After the next start has recovered, both targets of a job hold the same,
// what was acknowledged is there, the session's state names what the files hold, and nothing lives or is left over.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	const worlds, rounds = 2, 100
	for i := range worlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serving("grace: 20ms", "backup_retention: 1s")
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 0))
			t.Logf("seed %d", seed)
			told := &acked{version: map[string]int64{}}
			outcomes := make(map[job.Code]int)
			var killed int
			for round := range rounds {
				s := w.serve()
				w.whole(s, told)
				kill := time.Duration(random.IntN(150)) * time.Millisecond
				for code, n := range s.torment(told, round, random.Uint64(), kill) {
					outcomes[code] += n
				}
				killed++
				if t.Failed() {
					t.Fatalf("round %d, seed %d: %s", round, seed, s.log)
				}
			}
			s := w.serve()
			w.whole(s, told)
			if exit := s.stop(); exit != 0 {
				t.Errorf("exit %d: %s", exit, s.log)
			}
			w.sound()
			t.Logf("NOTE %d kills, answers before them: %v", killed, outcomes)
			if outcomes[job.OK] == 0 || outcomes[job.ToolFailed] == 0 || outcomes["cut"] == 0 {
				t.Errorf("the kills hit nothing: %v", outcomes)
			}
		})
	}
}

// torment lets clients call until the server is killed, and returns the answers that came before, by code; "cut": none came.
func (s *served) torment(told *acked, round int, seed uint64, kill time.Duration) map[job.Code]int {
	s.w.t.Helper()
	const clients = 4
	var sessions [2]string
	setup := s.connect(nil)
	for i := range sessions {
		sessions[i] = s.session(setup, fmt.Sprint("s", i))
	}
	var mu sync.Mutex
	outcomes := make(map[job.Code]int)
	var callers sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	for i := range clients {
		c := s.connect(nil)
		callers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := 0; ; n++ {
				token := fmt.Sprintf("%d.%d.%d", round, i, n)
				pair := fmt.Sprintf("build/p%d", random.IntN(3))
				session := sessions[random.IntN(2)]
				script := fmt.Sprintf("echo %s > $1; echo %s > $2", token, token)
				one := ctx
				switch random.IntN(6) {
				case 0:
					script += "; exit 1"
				case 1:
					script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & " + script
				case 2:
					script += "; sleep 0.05"
					var give context.CancelFunc
					one, give = context.WithTimeout(ctx, time.Duration(random.IntN(60))*time.Millisecond)
					defer give()
				}
				a, err := ask(one, c, "sh_run", s.w.script(session, script, pair+"a", pair+"b"))
				mu.Lock()
				if err != nil {
					outcomes["cut"]++
				} else {
					outcomes[a.Code]++
				}
				mu.Unlock()
				if err == nil && a.Code == job.OK {
					told.commit(session, a.SessionVersion)
				}
				if err != nil && one.Err() == nil { // not we gave up: the server is gone
					return
				}
			}
		})
	}
	<-time.After(kill)
	s.kill()
	callers.Wait()
	mu.Lock()
	defer mu.Unlock()
	return outcomes
}

func (a *acked) commit(session string, version int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version[session] = max(a.version[session], version)
}

// whole fails unless the world of a recovered server is as its ledger says.
func (w *world) whole(s *served, told *acked) {
	w.t.Helper()
	if left := w.marked(); len(left) != 0 {
		w.t.Errorf("alive after recovery: %q", left)
	}
	if left, err := filepath.Glob(w.groups + "/*/"); err != nil || len(left) > 0 {
		w.t.Errorf("groups are left after recovery: %q, %v", left, err)
	}
	for p := range 3 {
		if a, b := w.read(fmt.Sprintf("build/p%da", p)), w.read(fmt.Sprintf("build/p%db", p)); a != b {
			w.t.Errorf("pair %d is half new: %q and %q", p, a, b)
		}
	}
	c := s.connect(nil)
	newest := map[string]artifact{}
	for i := range 2 {
		id := s.session(c, fmt.Sprint("s", i))
		var show struct {
			Version int64 `json:"session_version"`
			Data    struct {
				Sessions []struct {
					Version int64 `json:"session_version"`
					State   struct {
						Artifacts map[string]artifact `json:"artifacts"`
					} `json:"state"`
				} `json:"sessions"`
			} `json:"data"`
		}
		s.show(c, id, &show)
		if len(show.Data.Sessions) != 1 {
			w.t.Fatalf("session_show: %+v", show)
		}
		got := show.Data.Sessions[0]
		told.mu.Lock()
		if got.Version < told.version[id] {
			w.t.Errorf("session %s is at version %d, and %d was acknowledged", id, got.Version, told.version[id])
		}
		told.mu.Unlock()
		for path, a := range got.State.Artifacts {
			if newest[path].At.Before(a.At) {
				newest[path] = a
			}
		}
	}
	for path, a := range newest {
		b, err := os.ReadFile(w.path(path))
		ok(w.t, err)
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != a.SHA256 {
			w.t.Errorf("%s holds %q, which is not what job %s committed last", path, b, a.Job)
		}
	}
	if a := w.do("audit", "verify"); a.exit != 0 {
		w.t.Errorf("audit verify: %v", a)
	}
}

type artifact struct {
	SHA256 string    `json:"sha256"`
	Job    string    `json:"job"`
	At     time.Time `json:"at"`
}

func (s *served) show(c *mcp.ClientSession, id string, into any) {
	s.w.t.Helper()
	res, err := c.CallTool(context.Background(), &mcp.CallToolParams{Name: "session_show", Arguments: map[string]any{"session_id": id}})
	ok(s.w.t, err)
	b, err := json.Marshal(res.StructuredContent)
	ok(s.w.t, err)
	ok(s.w.t, json.Unmarshal(b, into))
}

// TestManyAtOnce holds a server's resident memory under 96 MiB while 64 jobs run at once, beside a flood of the log, a
// thousand forked daemons and an output of 1 GiB. A job more than may run is told so at once.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const jobs, most = 64, 96 << 20
	w := newWorld(t)
	w.serving("grace: 20ms", "min_free_bytes: 1MiB", "tool_limits: {sh_run: {staging: 2GiB, log: 600MiB}}")
	s := w.serve()
	c := s.connect(nil)
	began, _ := s.rss()
	gate := w.path("go")
	w.write("go", "")
	waiting := "while [ ! -s " + gate + " ]; do sleep 0.05; done"
	const line = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
	scripts := []string{
		"yes " + line + " | head -c 1073741824 > $1",
		"yes " + line + " | head -c 536870912; echo new > $1",
		"for i in $(seq 1000); do setsid sleep 1000 & done; echo new > $1",
	}
	answers := make(chan toolAnswer, jobs)
	for i := range jobs {
		script := waiting + "; echo new > $1"
		if i < len(scripts) {
			script = scripts[i] + "; " + waiting
		}
		session := s.session(c, fmt.Sprint("s", i))
		go func() {
			a, err := ask(t.Context(), s.connect(nil), "sh_run", with(w.script(session, script, fmt.Sprintf("build/o%d", i)), "timeout_s", 300, "wait_seconds", 1))
			if err != nil {
				t.Errorf("job %d: %v", i, err)
			}
			answers <- a
		}()
	}
	var ids []string
	for range jobs {
		a := <-answers
		if !a.Running {
			t.Errorf("got %+v", a.Result)
		}
		ids = append(ids, a.Job)
	}
	w.until("all run", func() bool {
		return strings.Contains(page(s, "/metrics"), fmt.Sprintf("eda_sidecar_jobs_running %d\n", jobs))
	})
	if a := s.must(c, "sh_run", w.script(s.session(c, "more"), "echo > $1", "build/more")); a.Code != job.Busy || a.RetryAfter == 0 {
		t.Errorf("a job more than may run: %+v", a.Result)
	}
	w.until("the output of 1 GiB is there", func() bool { return w.stagedBytes() >= 1<<30 })
	w.write("go", "now")
	killed := 0
	for i, id := range ids {
		a := s.must(c, "job_wait", map[string]any{"job_id": id})
		for a.Running {
			a = s.must(c, "job_wait", map[string]any{"job_id": id})
		}
		if a.Code != job.OK || !a.WorkerTerminated {
			t.Errorf("job %d: %+v", i, a.Result)
		}
		killed += a.DescendantsKilled
	}
	now, peak := s.rss()
	t.Logf("NOTE resident memory: %.1f MiB at the start, %.1f MiB at the peak, %.1f MiB at the end; %d daemons killed", mib(began), mib(peak), mib(now), killed)
	if peak > most {
		t.Errorf("resident memory of %.1f MiB at its peak", mib(peak))
	}
	if killed < 1000 {
		t.Errorf("%d daemons killed, want 1000 at least", killed)
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
	w.sound()
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func with(args map[string]any, pairs ...any) map[string]any {
	for i := 0; i < len(pairs); i += 2 {
		args[pairs[i].(string)] = pairs[i+1]
	}
	return args
}

// stagedBytes is what the running jobs have written into their slots.
func (w *world) stagedBytes() (sum int64) {
	found, err := filepath.Glob(w.path(".eda-sidecar/jobs/*/s0/*"))
	ok(w.t, err)
	for _, name := range found {
		if info, err := os.Stat(name); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// TestThousandJobs leaves descriptors, threads, groups, directories and memory of a server as they were.
func TestThousandJobs(t *testing.T) {
	t.Parallel()
	const warm, jobs = 600, 1000 // warm: the table of finished jobs is full
	w := newWorld(t)
	w.serving("backup_retention: 1s")
	s := w.serve()
	c := s.connect(nil)
	session := s.session(c, "one")
	script := func(i int) string {
		if i%100 == 0 { // it costs the tool's linger
			return "setsid sleep 1000 & echo new > $1"
		}
		return "echo new > $1"
	}
	one := func(i int) {
		if a := s.must(c, "sh_run", w.script(session, script(i), "build/a.v")); a.Code != job.OK {
			t.Fatalf("job %d: %+v", i, a.Result)
		}
	}
	left := func() (names []string) {
		groups, err := filepath.Glob(w.groups + "/*/")
		ok(t, err)
		return append(append(append(w.list(".eda-sidecar/jobs"), w.list(".eda-sidecar/trash")...), w.list(".eda-sidecar/conflicts")...), groups...)
	}
	var all sync.WaitGroup
	for k := range 4 {
		all.Go(func() {
			c := s.connect(nil)
			session := s.session(c, fmt.Sprint("warm", k))
			for i := range warm / 4 {
				if a := s.must(c, "sh_run", w.script(session, script(i+1), fmt.Sprintf("build/w%d", k))); a.Code != job.OK {
					t.Errorf("job %d: %+v", i, a.Result)
				}
			}
		})
	}
	all.Wait()
	w.until("the backups have expired", func() bool { return len(left()) == 0 })
	fds, threads := s.counts()
	rss, _ := s.rss()
	for i := range jobs {
		one(i)
	}
	w.until("the backups have expired again", func() bool { return len(left()) == 0 })
	fdsAfter, threadsAfter := s.counts()
	rssAfter, _ := s.rss()
	t.Logf("NOTE after %d jobs: %d then %d descriptors, %d then %d threads, %.1f then %.1f MiB resident", jobs, fds, fdsAfter, threads, threadsAfter, mib(rss), mib(rssAfter))
	if fdsAfter > fds+2 || threadsAfter > threads+4 || rssAfter > rss+rss/10 {
		t.Error("the server has grown")
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
	w.sound()
}

// TestServerKilledInEveryPhase kills a server at its Nth system call of a kind while two sessions publish at once, and
// looks in which phases their jobs were found.
func TestServerKilledInEveryPhase(t *testing.T) {
	var mu sync.Mutex
	phases := make(map[txn.Phase]int)
	t.Run("sweep", func(t *testing.T) {
		for _, c := range []struct {
			call         string
			stride, most int
		}{{"mkdirat", 3, 12}, {"renameat2", 1, 12}, {"fsync", 2, 16}, {"pwrite64", 5, 40}} {
			t.Run(c.call, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.serving("grace: 20ms", "backup_retention: 1s")
				told := &acked{version: map[string]int64{}}
				fired := 0
				for n := 1; n <= c.most; n += c.stride {
					s := w.serve()
					w.whole(s, told)
					if s.publishUnder(told, n, c.call) {
						fired++
					}
					s.kill()
					mu.Lock()
					for _, r := range w.recovered("--dry-run") {
						phases[r.Phase]++
					}
					mu.Unlock()
				}
				s := w.serve()
				w.whole(s, told)
				if exit := s.stop(); exit != 0 {
					t.Errorf("exit %d: %s", exit, s.log)
				}
				w.sound()
				if fired < 2 {
					t.Errorf("%d kills: the sweep does not reach what it is for", fired)
				}
			})
		}
	})
	t.Logf("NOTE jobs found after the kills, by phase: %v", phases)
	for _, p := range []txn.Phase{txn.WorkerRunning, txn.PublishingOutputs, txn.Committed} {
		if phases[p] == 0 {
			t.Errorf("no kill left a job in %s", p)
		}
	}
}

// publishUnder attaches strace, which kills the server at its nth call of this name on any thread, and lets two sessions
// publish. It reports whether the server died.
func (s *served) publishUnder(told *acked, n int, call string) (died bool) {
	s.w.t.Helper()
	type one struct {
		c       *mcp.ClientSession
		session string
	}
	var all []one
	for i := range 2 {
		c := s.connect(nil)
		all = append(all, one{c, s.session(c, fmt.Sprint("s", i))})
	}
	detached := s.w.attach(s.run, "-o", "/dev/null", "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n))
	defer detached()
	defer s.kill()
	var callers sync.WaitGroup
	for i, one := range all {
		callers.Go(func() {
			for k := range 2 {
				token := fmt.Sprintf("%s.%d.%d.%d", call, n, i, k)
				pair := fmt.Sprintf("build/p%d", i)
				a, err := ask(s.w.t.Context(), one.c, "sh_run", s.w.script(one.session, fmt.Sprintf("echo %s > $1; echo %s > $2", token, token), pair+"a", pair+"b"))
				if err == nil && a.Code == job.OK {
					told.commit(one.session, a.SessionVersion)
				}
			}
		})
	}
	callers.Wait()
	return s.ended()
}
