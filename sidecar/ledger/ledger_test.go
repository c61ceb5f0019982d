package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// bed is a ledger under test with the job that its helpers speak of.
type bed struct {
	*Ledger
	testing.TB
}

// start opens a ledger in o.Dir, by default a new one, and closes and verifies it at the end.
func start(t testing.TB, o Options) bed {
	t.Helper()
	if o.Dir == "" {
		o.Dir = memory(t)
	}
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	b := bed{l, t}
	t.Cleanup(func() { b.stop() })
	return b
}

// memory is a directory for what does not need a disk: its syncs cost nothing, however busy the machine is.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ledger")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// file is the ledger's database.
func (b bed) file() string { return filepath.Join(b.o.Dir, fileName) }

func (b bed) stop() {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	poisoned := b.Poisoned()
	if err := b.Close(ctx); !errors.Is(err, poisoned) {
		b.Errorf("close: %v, poisoned by %v", err, poisoned)
	}
}

// wait returns the answer to an operation.
func (b bed) wait(t *Ticket, err error) *Ticket {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
	select {
	case <-t.Done():
	case <-time.After(20 * time.Second):
		b.Fatal("no answer")
	}
	return t
}

// want fails unless the answer is ack, with an error that wraps why.
func (b bed) want(ack string, why error) func(*Ticket, error) {
	return func(t *Ticket, err error) {
		b.Helper()
		if b.wait(t, err); string(t.Ack()) != ack || !errors.Is(t.Err(), why) {
			b.Fatalf("got %s, %v; want %s, %v", t.Ack(), t.Err(), ack, why)
		}
	}
}

func event(job string, k audit.Kind) audit.Event {
	return audit.Event{Kind: k, Job: job, Session: "s", Tool: "tool", Principal: "me"}
}

func journal(job string) *txn.Journal {
	return &txn.Journal{Version: 1, Job: job, Session: "s", Tool: "tool", Principal: "me"}
}

// state is a session's state that holds v.
func state(t testing.TB, v string) session.State {
	t.Helper()
	s, err := session.State{}.Apply(session.Delta{Patch: map[string]any{"v": v}, Keys: session.Keys{Any: true}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// publish brings a job to phase publishing_outputs.
func (b bed) publish(job string) {
	b.Helper()
	b.want("durable", nil)(b.Begin(journal(job), event(job, audit.Allow)))
	b.want("durable", nil)(b.Publishing(journal(job), event(job, audit.Start)))
}

// commit commits a job that is publishing on generation base of session s.
func (b bed) commit(job string, base int64) (*Ticket, error) {
	return b.Commit(job, Session{ID: "s", Owner: "me", Name: "default", Generation: base, State: state(b, job)}, event(job, audit.Commit))
}

func (b bed) undo(job string) (*Ticket, error) {
	return b.RolledBack(job, event(job, audit.Error), event(job, audit.Rollback))
}

// kinds is the trail: "job/kind ..." with the ledger's own kinds left out.
func kinds(t testing.TB, r *Reader) string {
	t.Helper()
	var all []string
	if err := r.Events(t.Context(), Query{}, func(e Record) error {
		if e.Job != "" {
			all = append(all, e.Job+"/"+e.Kind)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func (b bed) phase(job string) string {
	b.Helper()
	j, err := b.Job(b.Context(), job)
	if errors.Is(err, ErrNotFound) {
		return "none"
	}
	if err != nil {
		b.Fatal(err)
	}
	return string(j.Phase)
}

func (b bed) verified() Report {
	b.Helper()
	report, err := b.Verify(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return report
}

func TestStraight(t *testing.T) {
	var fed []string
	dir := t.TempDir()
	b := start(t, Options{Dir: dir, Workspace: "ws", Sinks: []func(audit.Event){func(e audit.Event) { fed = append(fed, string(e.Kind)) }}})
	b.publish("j1")
	if got := b.phase("j1"); got != "publishing_outputs" {
		t.Errorf("got %s", got)
	}
	b.want("durable", nil)(b.commit("j1", 0))
	job, err := b.Job(t.Context(), "j1")
	if err != nil || job.Phase != txn.Committed || job.Tool != "tool" || job.FirstSeq != 2 || !job.SettledAt.IsZero() {
		t.Errorf("got %+v, %v", job, err)
	}
	if j, err := txn.DecodeJournal(job.Doc); err != nil || j.Job != "j1" {
		t.Errorf("got %v, %v", j, err)
	}
	s, err := b.SessionByName(t.Context(), "me", "default")
	if err != nil || s.ID != "s" || s.Generation != 1 || s.Job != "j1" || s.State.Vars["v"] != "j1" {
		t.Errorf("got %+v, %v", s, err)
	}
	open, err := b.OpenJobs(t.Context())
	if err != nil || len(open) != 1 {
		t.Errorf("got %v, %v", open, err)
	}
	b.publish("j2")
	tk, err := b.Settled("j1")
	if err != nil {
		t.Fatal(err)
	}
	b.want("durable", nil)(b.commit("j2", 1)) // j1's settled_at rides
	b.want("durable", nil)(tk, nil)
	retired, err := b.Retired("j1")
	b.queue.Flush()
	b.want("durable", nil)(retired, err)
	if job, err = b.Job(t.Context(), "j1"); err != nil || job.SettledAt.IsZero() || job.RetiredAt.IsZero() {
		t.Errorf("got %+v, %v", job, err)
	}
	if s, err = b.Session(t.Context(), "s"); err != nil || s.Generation != 2 || s.State.Vars["v"] != "j2" {
		t.Errorf("got %+v, %v", s, err)
	}
	if got := kinds(t, b.Reader); got != "j1/allow j1/start j1/commit j2/allow j2/start j2/commit" {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprint(fed); got != "[ledger.opened allow start commit allow start commit]" {
		t.Errorf("sinks saw %s", got)
	}
	if r := b.verified(); r.Events != 7 || r.Jobs != 2 || r.Sessions != 1 || r.Head.Seq != 7 {
		t.Errorf("got %+v", r)
	}
	b.stop()
	again := start(t, Options{Dir: dir, Workspace: "ws", LockEpoch: 1})
	if o := again.Opening(); o.Epoch != 2 || o.Fresh || o.Restored || o.Workspace != "ws" {
		t.Errorf("got %+v", o)
	}
	if report := again.verified(); report.Head.Seq != 9 { // closed, opened
		t.Errorf("got %+v", report)
	}
}

// TestRiders pins the cost: k operations that wait together are one COMMIT.
func TestRiders(t *testing.T) {
	l, err := open(t.Context(), Options{Dir: memory(t)}) // no writer: the test is the shell
	if err != nil {
		t.Fatal(err)
	}
	var tickets []*Ticket
	for i := range 50 {
		tk, err := l.RecordLast(event(fmt.Sprint("r", i), audit.Deny))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, tk)
	}
	before := l.store.commits
	if l.queue.Round(l.store); l.store.commits != before {
		t.Error("riders alone are committed")
	}
	tk, err := l.Begin(journal("j"), event("j", audit.Allow))
	if err != nil {
		t.Fatal(err)
	}
	l.queue.Round(l.store)
	for _, r := range append(tickets, tk) {
		if r.Ack() != Durable {
			t.Error(r.Ack(), r.Err())
		}
	}
	if got := l.store.commits - before; got != 1 {
		t.Errorf("%d COMMITs", got)
	}
	for _, kind := range []audit.Kind{audit.Start, audit.Error, audit.TerminationUnproven} {
		if tk, err = l.Record(event("j", kind)); err != nil {
			t.Fatal(err)
		}
	}
	l.queue.Round(l.store)
	if got := l.store.commits - before; got != 2 || tk.Ack() != Durable {
		t.Errorf("termination_unproven waits: %d COMMITs, %s", got, tk.Ack())
	}
}

// TestFlush: alone, riders wait no longer than the writer's tick.
func TestFlush(t *testing.T) {
	b := start(t, Options{})
	b.want("durable", nil)(b.RecordLast(event("r", audit.Deny)))
}

func TestSessions(t *testing.T) {
	b := start(t, Options{})
	op := func(job string) (audit.Event, audit.Event) { return event(job, audit.Allow), event(job, audit.Commit) }
	create := func(id, name, job string) (*Ticket, error) {
		a, c := op(job)
		return b.SessionOp(Session{ID: id, Owner: "me", Name: name}, a, c)
	}
	b.want("durable", nil)(create("s", "alu", "c1"))
	b.want("refused", ErrStale)(create("s", "other", "c2")) // the id is taken
	b.want("refused", ErrStale)(create("t", "alu", "c3"))   // the name is taken
	b.want("durable", nil)(create("u", "fpu", "c4"))
	b.publish("j1")
	b.want("durable", nil)(b.commit("j1", 1))
	live, err := b.Session(t.Context(), "s")
	if err != nil || live.Generation != 2 {
		t.Fatal(live, err)
	}
	live.DestroyedAt = time.Now()
	a, c := op("d1")
	b.want("durable", nil)(b.SessionOp(live, a, c))
	dead, err := b.Session(t.Context(), "s")
	if err != nil || dead.DestroyedAt.IsZero() || len(dead.State.Vars) != 0 || dead.Generation != 3 {
		t.Errorf("got %+v, %v", dead, err)
	}
	// a destroyed session never comes back
	b.publish("j2")
	b.want("refused", ErrStale)(b.commit("j2", 3))
	b.want("durable", nil)(b.undo("j2"))
	if _, err := b.SessionByName(t.Context(), "me", "alu"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	b.want("durable", nil)(create("w", "alu", "c5")) // its name may
	b.want("durable", nil)(create("x", "", "c6"))    // those without a name may be many
	b.want("durable", nil)(create("y", "", "c7"))
	if _, err := b.SessionByName(t.Context(), "me", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	all, err := b.Sessions(t.Context(), "me", "", 2)
	if got := fmt.Sprint(len(all), all[0].ID, all[1].ID); err != nil || got != "2uw" {
		t.Errorf("got %s, %v", got, err)
	}
	if all, err = b.Sessions(t.Context(), "you", "", 10); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v", all, err)
	}
	b.verified()
}

// lostUpdate has two jobs commit from one generation, and says what became of the second.
func lostUpdate(b bed) string {
	b.publish("j1")
	b.publish("j2")
	b.want("durable", nil)(b.commit("j1", 0))
	b.publish("j3")
	b.want("durable", nil)(b.commit("j3", 1))
	return string(b.wait(b.commit("j2", 1)).Ack())
}

func TestCompareAndSet(t *testing.T) {
	b := start(t, Options{})
	if got := lostUpdate(b); got != "refused" || b.phase("j2") != "publishing_outputs" {
		t.Errorf("got %s, phase %s", got, b.phase("j2"))
	}
	b.want("durable", nil)(b.undo("j2"))
	if got := kinds(t, b.Reader); strings.Contains(got, "j2/commit") {
		t.Errorf("got %s", got)
	}
	b.verified()
	// the control: without the generation in the comparison the update of j3 is lost
	c := start(t, Options{})
	careless, err := c.store.conn.PrepareContext(t.Context(), strings.Replace(sqlUpdate, "generation = ?", "? IS NOT NULL", 1))
	if err != nil {
		t.Fatal(err)
	}
	c.want("durable", nil)(c.SetAgent("x")) // the writer is idle behind it
	c.store.stmts[sqlUpdate] = careless
	if got := lostUpdate(c); got != "durable" {
		t.Errorf("the control is %s: the test does not see a lost update", got)
	}
}

func TestPhases(t *testing.T) {
	b := start(t, Options{})
	b.want("durable", nil)(b.Begin(journal("j"), event("j", audit.Allow)))
	if tk := b.wait(b.Begin(journal("j"), event("j", audit.Allow))); tk.Ack() != Refused || !errors.Is(tk.Err(), audit.ErrOrder) {
		t.Errorf("a second begin: %s, %v", tk.Ack(), tk.Err())
	}
	b.want("refused", ErrPhase)(b.commit("j", 0)) // outputs were not published
	b.want("refused", ErrPhase)(b.Publishing(journal("other")))
	b.want("durable", nil)(b.Publishing(journal("j")))
	b.want("refused", ErrPhase)(b.Publishing(journal("j")))
	b.want("durable", nil)(b.undo("j"))
	b.want("refused", ErrPhase)(b.RolledBack("j"))
	b.want("refused", audit.ErrOrder)(b.commit("j", 0))
	tk, err := b.Settled("j")
	b.queue.Flush()
	b.want("refused", ErrPhase)(tk, err)
	if _, err := b.Record(audit.Event{Kind: audit.Start}); !errors.Is(err, audit.ErrEvent) {
		t.Errorf("an event without a job: %v", err)
	}
	if _, err := b.RolledBack("j", event("k", audit.Error)); !errors.Is(err, audit.ErrEvent) {
		t.Errorf("an event of another job: %v", err)
	}
	big := event("k", audit.Deny)
	big.Data = map[string]any{"x": strings.Repeat("x", audit.MaxBody)}
	if _, err := b.Record(big); !errors.Is(err, audit.ErrEvent) {
		t.Errorf("an event of 256 KiB: %v", err)
	}
	b.verified()
}

func TestModesAndPragmas(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	b := start(t, Options{Dir: dir})
	for name, want := range map[string]fs.FileMode{"": 0o700, "ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	b.want("durable", nil)(b.SetAgent("x")) // the writer is idle behind it
	for _, p := range writerPragmas() {
		if err := p.check(t.Context(), b.store.conn); err != nil {
			t.Error(err)
		}
	}
	// the control: a pragma that did not take is found out
	if _, err := b.store.conn.ExecContext(t.Context(), "PRAGMA synchronous = NORMAL"); err != nil {
		t.Fatal(err)
	}
	wrong := slices.DeleteFunc(writerPragmas(), func(p pragma) bool { return p.check(t.Context(), b.store.conn) == nil })
	if len(wrong) != 1 || wrong[0].name != "synchronous" {
		t.Errorf("got %v", wrong)
	}
	if agent, err := b.Agent(t.Context()); err != nil || agent != "x" {
		t.Errorf("got %q, %v", agent, err)
	}
}

// raw is a second connection that may do what the ledger never does.
func raw(t testing.TB, dir string, statements ...string) error {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(filepath.Join(dir, fileName), "rw", pragma{"busy_timeout", "10000", ""}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			return err
		}
	}
	return nil
}

func TestTriggers(t *testing.T) {
	for _, c := range []struct{ trigger, statement string }{
		{"events_no_update", `UPDATE events SET body = body WHERE seq = 2`},
		{"events_no_delete", `DELETE FROM events WHERE seq = 2`},
		{"jobs_final", `UPDATE jobs SET phase = 'rolled_back' WHERE id = 'j1'`},
		{"jobs_final", `UPDATE jobs SET doc = '' WHERE id = 'j1'`},
		{"jobs_no_delete", `DELETE FROM jobs WHERE id = 'j1'`},
		{"sessions_generation", `UPDATE sessions SET generation = generation WHERE id = 's'`},
		{"sessions_generation", `UPDATE sessions SET generation = generation + 2 WHERE id = 's'`},
		{"sessions_tombstone", `UPDATE sessions SET generation = generation + 1, destroyed_at = NULL WHERE id = 'dead'`},
		{"sessions_no_delete", `DELETE FROM sessions WHERE id = 's'`},
	} {
		t.Run(c.trigger, func(t *testing.T) {
			b := start(t, Options{})
			b.publish("j1")
			b.want("durable", nil)(b.commit("j1", 0))
			s := Session{ID: "dead", Owner: "me", Name: "x"}
			b.want("durable", nil)(b.SessionOp(s, event("c", audit.Allow), event("c", audit.Commit)))
			s.Generation, s.DestroyedAt = 1, time.Now()
			b.want("durable", nil)(b.SessionOp(s, event("d", audit.Allow), event("d", audit.Commit)))
			if err := raw(t, b.o.Dir, c.statement); code(err) != codeConstraint {
				t.Errorf("%s: got %v, want a refusal", c.statement, err)
			}
			// the control: it is the trigger that refuses
			if err := raw(t, b.o.Dir, "DROP TRIGGER "+c.trigger, c.statement); err != nil {
				t.Errorf("without the trigger: %v", err)
			}
		})
	}
	if err := raw(t, start(t, Options{}).o.Dir, `INSERT INTO jobs VALUES ('x', '', '', '', 'committing_state', '', 1, 1, 1, NULL, NULL)`); code(err) != codeConstraint {
		t.Errorf("a phase that is no phase: %v", err)
	}
}

func TestQuery(t *testing.T) {
	clock := time.Unix(1000, 0)
	b := start(t, Options{Now: func() time.Time { clock = clock.Add(time.Second); return clock }})
	for i := range 3 {
		job := fmt.Sprint("j", i)
		b.publish(job)
		b.want("durable", nil)(b.commit(job, int64(i)))
	}
	other := event("k", audit.Deny)
	other.Session, other.Principal = "t", "you"
	tk, err := b.Record(other)
	b.queue.Flush()
	b.want("durable", nil)(tk, err)
	var at []time.Time
	if err := b.Events(t.Context(), Query{}, func(r Record) error { at = append(at, time.Unix(0, r.At)); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		q    Query
		want string
	}{
		{"all", Query{}, "[1 2 3 4 5 6 7 8 9 10 11]"},
		{"job", Query{Job: "j1"}, "[5 6 7]"},
		{"session", Query{Session: "t"}, "[11]"},
		{"kind", Query{Kind: audit.Commit}, "[4 7 10]"},
		{"principal", Query{Principal: "you"}, "[11]"},
		{"after", Query{After: 8}, "[9 10 11]"},
		{"since", Query{Since: at[9]}, "[10 11]"},
		{"until", Query{Until: at[2]}, "[1 2]"},
		{"all_of_them", Query{Job: "j1", Session: "s", Kind: audit.Start, Since: at[0], Until: at[9], After: 1}, "[6]"},
		{"nothing", Query{Job: "j1", Kind: audit.Deny}, "[]"},
	} {
		got := []int64{}
		if err := b.Events(t.Context(), c.q, func(r Record) error { got = append(got, r.Seq); return nil }); err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s: got %v, %v, want %s", c.name, got, err, c.want)
		}
	}
	stop := errors.New("enough")
	if err := b.Events(t.Context(), Query{}, func(Record) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	var prev []byte
	if err := b.Events(t.Context(), Query{}, func(r Record) error {
		if !slices.Equal(r.Prev, prev) {
			t.Errorf("event %d: prevhash %x, want %x", r.Seq, r.Prev, prev)
		}
		prev = r.Hash
		if !strings.HasSuffix(string(r.Line()), fmt.Sprintf(`,"prevhash":"%x","hash":"%x"}`, r.Prev, r.Hash)) {
			t.Errorf("got %s", r.Line())
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestPages crosses several pages of events and jobs.
func TestPages(t *testing.T) {
	b := start(t, Options{})
	const n = 2*pageSize + 3
	var tickets []*Ticket
	for i := range n {
		job := fmt.Sprintf("j%05d", i)
		tk, err := b.Begin(journal(job), event(job, audit.Allow))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, tk)
	}
	for _, tk := range tickets {
		b.want("durable", nil)(tk, nil)
	}
	jobs, err := b.OpenJobs(t.Context())
	if err != nil || len(jobs) != n || !slices.IsSortedFunc(jobs, func(a, b Job) int { return strings.Compare(a.ID, b.ID) }) {
		t.Errorf("got %d jobs, %v", len(jobs), err)
	}
	if r := b.verified(); r.Events != n+1 || r.Jobs != n {
		t.Errorf("got %+v", r)
	}
}

func TestDeny(t *testing.T) {
	clock := time.Unix(1000, 0)
	b := start(t, Options{Now: func() time.Time { return clock }})
	deny := func(who string, n int) {
		for i := range n {
			e := event(fmt.Sprintf("%s-%d-%d", who, clock.Unix(), i), audit.Deny)
			e.Principal = who
			if err := b.Deny(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	deny("loud", 25)
	deny("calm", 1)
	clock = clock.Add(time.Second)
	deny("loud", 1)
	b.want("durable", nil)(b.SetAgent("x"))
	count, suppressed := map[string]int{}, ""
	if err := b.Events(t.Context(), Query{Kind: audit.Deny}, func(r Record) error {
		count[r.Principal]++
		e, err := audit.Decode(r.Body)
		if s, ok := e.Data["suppressed"]; ok {
			suppressed += fmt.Sprint(r.Principal, s)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if count["loud"] != 11 || count["calm"] != 1 || suppressed != "loud15" {
		t.Errorf("got %v, suppressed %s", count, suppressed)
	}
}
