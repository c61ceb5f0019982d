package job

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
)

// gate stops the ledger's COMMITs, once armed, until it is opened.
type gate struct {
	mu             sync.Mutex
	armed          bool // guarded by mu
	reached, opens chan struct{}
	once           sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), opens: make(chan struct{})} }

func (g *gate) arm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = true
}

func (g *gate) fault(point string) error {
	g.mu.Lock()
	armed := g.armed
	g.mu.Unlock()
	if armed && point == "before COMMIT" {
		g.once.Do(func() { close(g.reached) })
		<-g.opens
	}
	return nil
}

// destroyed runs jobs that wait for a session, destroys it by close, and says what is wrong. While the tombstone waits
// for its COMMIT nobody may have heard of it.
func destroyed(t *testing.T, close_ func(*rig, ledger.Session) error) (findings []string) {
	t.Helper()
	const waiters = 4
	g := newGate()
	r := newRig(t, parts{fault: g.fault})
	r.write("a", "old")
	row, err := r.OpenSession(t.Context(), me, "work")
	ok(t, err)
	release := r.hold(SessionKey(row))
	answers := make(chan string, waiters)
	for range waiters {
		go func() {
			req := r.sh("echo new > {a}", "a=a")
			req.Session = row.ID
			res := r.Run(t.Context(), req)
			finding := ""
			if now, err := r.ledger.Session(context.Background(), row.ID); err != nil || now.DestroyedAt.IsZero() {
				finding = fmt.Sprintf("heard %s before it was true (%v)", res.Code, err)
			} else if res.Code != SessionDestroyed || !res.RolledBack {
				finding = fmt.Sprintf("got %s (%s), want %s", res.Code, res.Message, SessionDestroyed)
			}
			answers <- finding
		}()
	}
	until(t, "the waiters", func() bool { return r.table.Queued() == waiters })
	closed := make(chan error, 1)
	go func() { closed <- close_(r, row) }()
	until(t, "the destroyer", func() bool { return r.table.Queued() == waiters+1 })
	g.arm()
	release()
	<-g.reached     // the tombstone is not durable
	for range 200 { // a wrong order shows at once: the waiters need no COMMIT to hear
		select {
		case f := <-answers:
			findings = append(findings, "while the tombstone waited: "+f)
			answers <- ""
		case <-time.After(time.Millisecond):
		}
		if len(findings) > 0 {
			break
		}
	}
	close(g.opens)
	ok(t, <-closed)
	for range waiters {
		if f := <-answers; f != "" {
			findings = append(findings, f)
		}
	}
	if r.read("a") != "old" {
		findings = append(findings, "a job of a destroyed session published")
	}
	return findings
}

// TestDestroyRacesQueued destroys a session under its queued jobs. The control fails them before the tombstone is durable.
func TestDestroyRacesQueued(t *testing.T) {
	early := func(r *rig, row ledger.Session) error {
		finish, err := r.table.Destroy(nil, lock.Owner{Session: row.ID, Tool: SessionTool}, SessionKey(row))
		if err != nil {
			return err
		}
		finish(true)
		row.DestroyedAt = time.Now()
		return r.sessionOp(row, me)
	}
	if len(destroyed(t, early)) == 0 {
		t.Error("control: SESSION_DESTROYED before the tombstone was not noticed")
	}
	for _, f := range destroyed(t, func(r *rig, row ledger.Session) error {
		return r.CloseSession(context.Background(), Who{Name: me}, row.ID)
	}) {
		t.Error(f)
	}
}

// TestDestroyWaits lets the session's running job commit before the session goes.
func TestDestroyWaits(t *testing.T) {
	var r *rig
	var row ledger.Session
	closed := make(chan error, 1)
	r = newRig(t, parts{groups: hooks{wait: func(ctx context.Context, p *cgroup.Process) (cgroup.Exit, error) {
		go func() { closed <- r.CloseSession(context.Background(), Who{Name: me}, row.ID) }()
		until(t, "the destroyer", func() bool { return r.table.Queued() == 1 })
		return p.Wait(ctx)
	}}})
	var err error
	row, err = r.OpenSession(t.Context(), me, "work")
	ok(t, err)
	req := r.sh("echo new > {a}", "a=a")
	req.Session = row.ID
	r.must(req)
	ok(t, <-closed)
	if res := r.want(req, SessionDestroyed); !strings.Contains(res.Hint, "open a new session") {
		t.Errorf("hint %q", res.Hint)
	}
}

// TestDestroyedForGood never brings a destroyed session back: its name, and the default one, get a new id.
func TestDestroyedForGood(t *testing.T) {
	r := newRig(t, parts{})
	first, err := r.OpenSession(t.Context(), me, "work")
	ok(t, err)
	again, err := r.OpenSession(t.Context(), me, "work")
	ok(t, err)
	if again.ID != first.ID {
		t.Errorf("one name, two sessions")
	}
	ok(t, r.CloseSession(t.Context(), Who{Name: me}, first.ID))
	if err := r.CloseSession(t.Context(), Who{Name: me}, first.ID); asError(err).Code != SessionDestroyed {
		t.Errorf("a second destroy: %v", err)
	}
	second, err := r.OpenSession(t.Context(), me, "work")
	ok(t, err)
	if second.ID == first.ID {
		t.Error("a destroyed session came back")
	}
	one := r.must(r.sh("echo 1 > {a}", "a=a"))
	if err := r.CloseSession(t.Context(), Who{Name: "somebody"}, one.Session); asError(err).Code != SessionNotFound {
		t.Errorf("somebody else's session: %v", err)
	}
	ok(t, r.CloseSession(t.Context(), Who{Name: me}, one.Session))
	two := r.must(r.sh("echo 2 > {a}", "a=a"))
	if two.Session == one.Session || two.SessionVersion != 1 {
		t.Errorf("default session %+v after %+v", two, one)
	}
}

// TestOpenTogether opens one name from two sides: the second looks while the first is not durable yet.
func TestOpenTogether(t *testing.T) {
	g := newGate()
	r := newRig(t, parts{fault: g.fault})
	g.arm()
	ids := make(chan string, 2)
	open := func() {
		row, err := r.OpenSession(context.Background(), me, "work")
		if err != nil {
			t.Error(err)
		}
		ids <- row.ID
	}
	go open()
	<-g.reached
	go open()
	<-time.After(50 * time.Millisecond) // for the second to look; the test holds whatever it sees
	close(g.opens)
	if one, two := <-ids, <-ids; one != two {
		t.Errorf("sessions %s and %s", one, two)
	}
}

// counted lets n calls increment a number in a target, and says what is wrong. pick gives the runner and the session of call i.
func counted(t *testing.T, r *rig, most func() int, n int, pick func(i int) (*Runner, string)) (findings []string) {
	t.Helper()
	r.write("n", "0\n")
	results := make([]Result, n)
	var wg sync.WaitGroup
	for i := range n {
		runner, session := pick(i)
		req := r.sh("echo $(( $(cat n) + 1 )) > {n}", "n=n")
		req.Session = session
		wg.Go(func() { results[i] = runner.Run(context.Background(), req) })
	}
	wg.Wait()
	for _, res := range results {
		if res.Code != OK {
			findings = append(findings, string(res.Code)+" "+res.Message)
		}
	}
	if got := r.read("n"); got != fmt.Sprintln(n) {
		findings = append(findings, "the number is "+got)
	}
	if most() > 1 {
		findings = append(findings, "two ran at once")
	}
	return findings
}

// meeting counts tools that run at once. If wanted, it keeps each until another one is there.
func meeting(wanted bool) (h hooks, most func() int) {
	var mu sync.Mutex
	inside, peak := 0, 0
	two := make(chan struct{})
	h.wait = func(ctx context.Context, p *cgroup.Process) (cgroup.Exit, error) {
		mu.Lock()
		if inside++; inside == 2 && peak < 2 {
			close(two)
		}
		peak = max(peak, inside)
		mu.Unlock()
		if wanted {
			select {
			case <-two:
			case <-time.After(10 * time.Second):
			}
		}
		defer func() { mu.Lock(); inside--; mu.Unlock() }()
		return p.Wait(ctx)
	}
	return h, func() int { mu.Lock(); defer mu.Unlock(); return peak }
}

// TestSerialised increments a number from many calls at once: of one session, and of two on one target. The control has
// two tables of keys, so that two jobs meet; even then nothing is lost: one of them is refused.
func TestSerialised(t *testing.T) {
	h, most := meeting(true)
	r := newRig(t, parts{groups: h})
	other := NewRunner(r.files, r.root, r.ledger, r.Runner.groups, lock.New(lock.Options{}), r.o)
	control := counted(t, r, most, 2, func(i int) (*Runner, string) {
		row, err := r.OpenSession(t.Context(), me, fmt.Sprint("s", i))
		ok(t, err)
		return []*Runner{r.Runner, other}[i], row.ID
	})
	if len(control) == 0 {
		t.Error("control: two tables of keys were not noticed")
	}
	if !strings.Contains(strings.Join(control, "\n"), string(OutputConflict)) || r.read("n") != "1\n" {
		t.Errorf("two jobs that met: %q, the number is %q; want one refused by the pre-image", control, r.read("n"))
	}
	for _, sessions := range []int{1, 2} {
		t.Run(fmt.Sprint(sessions, "_sessions"), func(t *testing.T) {
			h, most := meeting(false)
			r := newRig(t, parts{groups: h})
			for _, f := range counted(t, r, most, 10, func(i int) (*Runner, string) {
				row, err := r.OpenSession(t.Context(), me, fmt.Sprint("s", i%sessions))
				ok(t, err)
				return r.Runner, row.ID
			}) {
				t.Error(f)
			}
		})
	}
}

// TestApart runs jobs of two sessions at once: their targets are apart.
func TestApart(t *testing.T) {
	h, most := meeting(true)
	r := newRig(t, parts{groups: h})
	r.write("dir/old", "")
	var wg sync.WaitGroup
	for i := range 2 {
		row, err := r.OpenSession(t.Context(), me, fmt.Sprint("s", i))
		ok(t, err)
		req := r.sh("echo new > {a}", fmt.Sprint("a=dir/", i))
		req.Session = row.ID
		wg.Go(func() {
			if res := r.Run(context.Background(), req); res.Code != OK {
				t.Errorf("%s (%s)", res.Code, res.Message)
			}
		})
	}
	wg.Wait()
	if most() != 2 {
		t.Errorf("%d at once", most())
	}
}

// TestReads runs reads side by side, beside a mutating job on what they read. They write no row and leave no directory.
func TestReads(t *testing.T) {
	h, most := meeting(true)
	r := newRig(t, parts{groups: h})
	r.write("a", "text\n")
	release := r.hold(lock.Session(DefaultSession + "\x00" + me))
	defer release()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			res := r.Run(context.Background(), r.sh("cat a"))
			if res.Code != OK || res.Phase != "" || !strings.HasPrefix(res.Log.Head, "text\n") || r.phase(res.Job) != "" {
				t.Errorf("result %+v, row %q", res, r.phase(res.Job))
			}
			r.order(res.Job, "allow start finish")
		})
	}
	wg.Wait()
	if most() != 2 || len(r.jobs()) > 0 {
		t.Errorf("%d at once, left %v", most(), r.jobs())
	}
}

// TestFailingReads ends reads in each way.
func TestFailingReads(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		timeout      time.Duration
		want         Code
		events       string
	}{
		{"exit_3", "exit 3", 0, ToolFailed, "allow start error worker_terminated"},
		{"late", "sleep 300", 50 * time.Millisecond, ToolTimeout, "allow start timeout worker_terminated"},
		{"writes", "echo x > a || exit 4", 0, ToolFailed, "allow start error worker_terminated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, parts{})
			r.write("a", "old")
			req := r.sh(tt.script)
			req.Timeout = tt.timeout
			res := r.want(req, tt.want)
			r.order(res.Job, tt.events)
			if !res.RolledBack || !res.WorkerTerminated || r.phase(res.Job) != "" || len(r.jobs()) > 0 || r.read("a") != "old" {
				t.Errorf("result %+v, left %v, file %q", res, r.jobs(), r.read("a"))
			}
		})
	}
}
