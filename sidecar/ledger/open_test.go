package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
)

// prepared is a closed ledger with two committed jobs and one that is open.
func prepared(t testing.TB) (dir string) {
	t.Helper()
	b := start(t, Options{Workspace: "ws"})
	for i, job := range []string{"j0", "j1"} {
		b.publish(job)
		b.want("durable", nil)(b.commit(job, int64(i)))
	}
	b.publish("j2")
	b.stop()
	return b.o.Dir
}

func TestOpenRefuses(t *testing.T) {
	file := func(name string, write func(path string) error) func(string) error {
		return func(dir string) error { return write(filepath.Join(dir, name)) }
	}
	for _, c := range []struct {
		name   string
		before func(dir string) error
		o      Options
		want   error
	}{
		{"newer", func(dir string) error { return raw(t, dir, "PRAGMA user_version = 2") }, Options{}, ErrNewer},
		{"other_workspace", nil, Options{Workspace: "other"}, ErrWorkspace},
		{"other_program", func(dir string) error { return raw(t, dir, "PRAGMA application_id = 7") }, Options{}, ErrDamaged},
		{"no_database", file(fileName, func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("not a database. "), 600), 0o600) }), Options{}, ErrDamaged},
		{"cut", file(fileName, func(p string) error { return os.Truncate(p, 20480) }), Options{}, ErrDamaged},
		{"page", file(fileName, func(p string) error { return overwrite(p, 8192+8, []byte{0xff, 0xff, 0xff, 0xff}) }), Options{}, ErrDamaged},
		{"missing", file(fileName, os.Remove), Options{Used: true}, ErrFresh},
		{"event", func(dir string) error {
			return raw(t, dir, "DROP TRIGGER events_no_update", "UPDATE events SET principal = 'you' WHERE seq = 9")
		}, Options{}, ErrDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := prepared(t)
			if c.before != nil {
				if err := c.before(dir); err != nil {
					t.Fatal(err)
				}
			}
			was := sums(t, dir)
			c.o.Dir = dir
			if _, _, err := Look(t.Context(), c.o); !errors.Is(err, c.want) {
				t.Errorf("a look: got %v, want %v", err, c.want)
			}
			l, err := Open(t.Context(), c.o)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, %v, want %v", l, err, c.want)
			}
			if is := sums(t, dir); is != was {
				t.Errorf("something was changed: %s, was %s", is, was)
			}
		})
	}
	dir := prepared(t) // the control: as it was it opens, and a fresh one is welcome where there are no jobs
	start(t, Options{Dir: dir, Workspace: "ws", Used: true})
	if o := start(t, Options{}).Opening(); !o.Fresh || o.Epoch != 1 || o.Workspace == "" {
		t.Errorf("got %+v", o)
	}
}

func overwrite(path string, at int64, with []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(with, at)
	return errors.Join(err, f.Close())
}

// sums says what the ledger's files hold. Only for files that no connection of this process has open.
func sums(t testing.TB, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, fileName))
	if errors.Is(err, os.ErrNotExist) {
		return "absent"
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// TestOpenFails: a failure at any statement of a start, the first or a later one, ends it with an error, and the next
// start finds a ledger that is whole.
func TestOpenFails(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		dir := memory(t)
		for n := 1; ; n++ {
			if fresh {
				dir = memory(t)
			}
			left, fired := n, false
			l, err := open(t.Context(), Options{Dir: dir, Fault: func(p string) error {
				if strings.HasSuffix(p, "ROLLBACK") {
					return nil // it has no answer
				}
				if left--; left != 0 {
					return nil
				}
				fired = true
				return sqlite(codeIOErr)
			}})
			if (err == nil) == fired {
				t.Errorf("statement %d, fresh %v: fired %v, %v", n, fresh, fired, err)
			}
			if err := l.store.close(); err != nil { // as the end of the process would
				t.Error(err)
			}
			b := start(t, Options{Dir: dir})
			b.verified()
			b.stop()
			if !fired {
				if n < 10 {
					t.Errorf("only %d statements", n)
				}
				break
			}
		}
	}
}

// backup copies a ledger into another directory as an operator does, also beside its writer.
func backup(t testing.TB, from, to string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(filepath.Join(from, fileName), "ro"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "VACUUM INTO ?", filepath.Join(to, fileName))
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestRestored(t *testing.T) {
	dir := prepared(t) // epoch 1
	older := t.TempDir()
	b := start(t, Options{Dir: dir, LockEpoch: 1})
	b.want("durable", nil)(b.undo("j2"))
	backup(t, dir, older)
	// what somebody does who copies the live files, log and all
	copied := t.TempDir()
	for _, name := range []string{fileName, fileName + "-wal"} {
		if out, err := exec.CommandContext(t.Context(), "cp", filepath.Join(dir, name), copied).CombinedOutput(); err != nil {
			t.Fatal(string(out), err)
		}
	}
	b.publish("j3")
	b.stop()
	c := start(t, Options{Dir: dir, LockEpoch: 2})
	if o := c.Opening(); o.Restored || o.Epoch != 3 {
		t.Errorf("got %+v", o)
	}
	c.stop()
	for name, dir := range map[string]string{"backup": older, "copied": copied} {
		seen := looked(t, Options{Dir: dir, LockEpoch: 3})
		r := start(t, Options{Dir: dir, LockEpoch: 3})
		if o := r.Opening(); !o.Restored || o.Epoch != 4 || !reflect.DeepEqual(o, seen) {
			t.Errorf("%s: got %+v, a look saw %+v", name, o, seen)
		}
		found := 0
		if err := r.Events(t.Context(), Query{Kind: audit.LedgerRestored}, func(Record) error { found++; return nil }); err != nil || found != 1 {
			t.Errorf("%s: %d events, %v", name, found, err)
		}
		r.verified()
		r.stop()
	}
	// the control, ignoreRestoredLedger: whoever does not say what the lock knows is not told
	again := t.TempDir()
	backup(t, older, again)
	if o := start(t, Options{Dir: again}).Opening(); o.Restored {
		t.Errorf("got %+v", o)
	}
}

// TestRedirty watches the system calls of a start on a log that a killed process left: the log is written in place and
// synced before anything goes into the ledger. The control is a start that trusts the page cache.
func TestRedirty(t *testing.T) {
	if err := redirtied(t, "own"); err != nil {
		t.Error(err)
	}
	if err := redirtied(t, "trust"); err == nil {
		t.Error("the control, trustPageCache, is not noticed")
	}
}

func redirtied(t *testing.T, scene string) error {
	t.Helper()
	dir := t.TempDir()
	killed := func() {
		cmd, out := child(t, "kill 4 after COMMIT", dir)
		for out.Scan() {
		}
		_ = cmd.Wait() // it was killed
	}
	killed()
	wal, err := os.ReadFile(filepath.Join(dir, fileName+"-wal"))
	if err != nil || len(wal) < 4096 {
		t.Fatalf("no log: %d bytes, %v", len(wal), err)
	}
	log := filepath.Join(t.TempDir(), "strace")
	cmd, out := child(t, scene, dir, "strace", "-f", "-y", "-s", "0", "-o", log, "-e", "trace=pwrite64,write,fsync,fdatasync,ftruncate")
	for out.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	trace, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`(pwrite64|write|fsync|fdatasync|ftruncate)\(\d+<([^>]*)>(?:, "[^"]*"\.*, (\d+))?`)
	written, synced := 0, false
	for _, m := range call.FindAllStringSubmatch(string(trace), -1) {
		switch name := filepath.Base(m[2]); {
		case name == fileName+"-wal" && strings.HasSuffix(m[1], "write64"):
			n, err := strconv.Atoi(m[3])
			if err != nil {
				t.Fatal(m, err)
			}
			written, synced = written+n, false
		case name == fileName+"-wal" && strings.HasSuffix(m[1], "sync"):
			synced = written >= len(wal)
		case name == fileName:
			if !synced {
				return fmt.Errorf("%s of %s after %d of %d bytes of the log, synced %v", m[1], name, written, len(wal), synced)
			}
			return nil
		}
	}
	return fmt.Errorf("nothing was written to the ledger:\n%s", trace)
}

// TestDisagree: an open job whose phase somebody edited is named at the start; the control is the ledger as it was.
func TestDisagree(t *testing.T) {
	for _, c := range []struct{ edit, want string }{
		{"SELECT 1", "[]"},
		{"UPDATE jobs SET phase = 'committed' WHERE id = 'j2'", "[j2]"},
		{"UPDATE jobs SET phase = 'publishing_outputs' WHERE id = 'j1'", "[j1]"},
	} {
		dir := prepared(t)
		if err := raw(t, dir, "DROP TRIGGER jobs_final", c.edit); err != nil {
			t.Fatal(err)
		}
		seen := looked(t, Options{Dir: dir})
		o := start(t, Options{Dir: dir}).Opening()
		if got := fmt.Sprint(o.Disagree); got != c.want || !reflect.DeepEqual(o, seen) {
			t.Errorf("%s: got %s, want %s; %+v, a look saw %+v", c.edit, got, c.want, o, seen)
		}
	}
}

// looked returns what a look sees, which must be what Open finds, and wants nothing to be changed by it.
func looked(t *testing.T, o Options) Opening {
	t.Helper()
	was := sums(t, o.Dir)
	r, opening, err := Look(t.Context(), o)
	if err == nil {
		err = r.Close()
	}
	if is := sums(t, o.Dir); err != nil || is != was {
		t.Fatalf("look: %v; the ledger was %s, is %s", err, was, is)
	}
	return opening
}

// TestReaderAlone reads a ledger that nobody owns, and one whose owner was killed; it changes nothing.
func TestReaderAlone(t *testing.T) {
	dir := prepared(t)
	was := sums(t, dir)
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	if open, err := r.OpenJobs(t.Context()); err != nil || len(open) != 3 {
		t.Errorf("got %v, %v", open, err)
	}
	if _, err := r.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := r.db.ExecContext(t.Context(), "DELETE FROM sessions"); err == nil {
		t.Error("a reader writes")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if is := sums(t, dir); is != was {
		t.Error("a reader changed the ledger")
	}
	killed := t.TempDir()
	cmd, out := child(t, "kill 5 after COMMIT", killed)
	for out.Scan() {
	}
	_ = cmd.Wait() // it was killed
	files := func() (all string) {
		for _, name := range []string{fileName, fileName + "-wal"} {
			b, err := os.ReadFile(filepath.Join(killed, name))
			all += fmt.Sprintf("%x %v ", sha256.Sum256(b), err)
		}
		return all
	}
	was = files()
	if r, err = OpenReader(killed); err != nil {
		t.Fatal(err)
	}
	if j, err := r.Job(t.Context(), "j"); err != nil || j.Phase != "committed" {
		t.Errorf("got %+v, %v", j, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if is := files(); is != was {
		t.Errorf("a reader changed what a crash left: %s, was %s", is, was)
	}
	if _, err := OpenReader(t.TempDir()); !errors.Is(err, ErrEmpty) {
		t.Errorf("got %v, want %v", err, ErrEmpty)
	}
	if err := raw(t, dir, "PRAGMA user_version = 2"); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReader(dir); !errors.Is(err, ErrNewer) {
		t.Errorf("got %v, want %v", err, ErrNewer)
	}
}

// TestOrdersSurvive: what an earlier process wrote of a job decides what may follow in this one.
func TestOrdersSurvive(t *testing.T) {
	dir := t.TempDir()
	b := start(t, Options{Dir: dir})
	b.publish("unproven")
	b.want("durable", nil)(b.Record(event("unproven", audit.Timeout), event("unproven", audit.TerminationUnproven)))
	b.publish("open")
	b.publish("done")
	b.want("durable", nil)(b.commit("done", 0))
	b.want("durable", nil)(b.Record(event("read", audit.Allow), event("read", audit.Start)))
	b.stop()
	b = start(t, Options{Dir: dir})
	recovered := func(job string) audit.Event { return event(job, audit.Recovered) }
	b.want("refused", audit.ErrOrder)(b.undo("unproven"))
	b.want("durable", nil)(b.RolledBack("unproven", event("unproven", audit.WorkerTerminated), event("unproven", audit.Rollback)))
	b.want("refused", audit.ErrOrder)(b.RolledBack("done", recovered("done"), event("done", audit.Rollback)))
	b.want("durable", nil)(b.Settled("done", recovered("done")))
	b.want("durable", nil)(b.RolledBack("open", recovered("open"), event("open", audit.Rollback)))
	b.want("durable", nil)(b.RecordLast(recovered("read")))
	b.want("durable", nil)(b.RecordLast(recovered("never begun")))
	if open, err := b.OpenJobs(t.Context()); err != nil || len(open) != 0 {
		t.Errorf("got %v, %v", open, err)
	}
	b.verified()
}

func TestVerify(t *testing.T) {
	drop := []string{"DROP TRIGGER events_no_update", "DROP TRIGGER events_no_delete", "DROP TRIGGER jobs_final", "DROP TRIGGER jobs_no_delete", "DROP TRIGGER sessions_generation", "DROP TRIGGER sessions_no_delete"}
	// events: 1 opened, 2-4 j0, 5-7 j1, 8-9 j2, 10 closed
	for _, c := range []struct {
		name   string
		change []string
		seq    int64
		job    string
	}{
		{"whole", nil, 0, ""},
		{"body", []string{`UPDATE events SET body = REPLACE(body, 'j0/2', 'j0/3') WHERE seq = 3`}, 3, "j0"},
		{"two", []string{`UPDATE events SET tool = 'x' WHERE seq IN (6, 4)`}, 4, "j0"},
		{"dropped", []string{`DELETE FROM events WHERE seq = 5`}, 6, "j1"},
		{"dropped_first", []string{`DELETE FROM events WHERE seq = 1`}, 2, "j0"},
		{"swapped", []string{`UPDATE events SET seq = 100 WHERE seq = 6`, `UPDATE events SET seq = 6 WHERE seq = 7`, `UPDATE events SET seq = 7 WHERE seq = 100`}, 6, "j1"},
		{"doubled", []string{`INSERT INTO events SELECT 11, job, session, kind, tool, principal, at, body, hash FROM events WHERE seq = 10`}, 11, ""},
		{"phase", []string{`UPDATE jobs SET phase = 'rolled_back' WHERE id = 'j1'`}, 5, "j1"},
		{"phase_open", []string{`UPDATE jobs SET phase = 'committed' WHERE id = 'j2'`}, 8, "j2"},
		{"journal", []string{`UPDATE jobs SET doc = REPLACE(doc, '"version":1', '"version":9') WHERE id = 'j2'`}, 8, "j2"},
		{"journal_kept", []string{`UPDATE jobs SET doc = '{}' WHERE id = 'j1'`}, 5, "j1"},
		{"journal_of_another", []string{`UPDATE jobs SET doc = (SELECT doc FROM jobs WHERE id = 'j0') WHERE id = 'j2'`}, 8, "j2"},
		{"journal_retired", []string{`UPDATE jobs SET doc = '{}', settled_at = 1, retired_at = 1 WHERE id = 'j1'`}, 0, ""}, // as triggers
		{"row", []string{`DELETE FROM jobs WHERE id = 'j0'`}, 4, "j0"},
		{"generation", []string{`UPDATE sessions SET generation = 7 WHERE id = 's'`}, 0, "j1"},
		{"state", []string{`UPDATE sessions SET state = REPLACE(state, 'j1', 'j9') WHERE id = 's'`}, 0, "j1"},
		{"session_gone", []string{`DELETE FROM sessions`}, 4, "j0"},
		{"triggers", []string{`SELECT 1`}, 0, ""},
		{"session", []string{`INSERT INTO sessions VALUES ('x', 'me', 'x', 1, 'j9', '{}', 1, 1, NULL)`}, 0, "j9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := prepared(t)
			if c.change != nil {
				if err := raw(t, dir, append(slices.Clone(drop), c.change...)...); err != nil {
					t.Fatal(err)
				}
			}
			r, err := OpenReader(dir)
			if err != nil {
				t.Fatal(err)
			}
			report, err := r.Verify(t.Context())
			if c.change == nil {
				if err != nil || report.Events != 10 || report.Jobs != 3 || report.Sessions != 1 {
					t.Errorf("got %+v, %v", report, err)
				}
			} else if f := (*audit.Fault)(nil); !errors.As(err, &f) || f.Seq != c.seq || f.Job != c.job {
				t.Errorf("got %v, want event %d of job %q", err, c.seq, c.job)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// fault is what Verify finds in a closed ledger after some statements.
func fault(t *testing.T, dir string, statements ...string) string {
	t.Helper()
	if err := raw(t, dir, statements...); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Verify(t.Context())
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err != nil && !errors.Is(err, audit.ErrTrail) {
		t.Errorf("%v is no fault", err)
	}
	return fmt.Sprint(err)
}

// TestVerifySchema: each trigger and index must be there with its text, and nothing else.
func TestVerifySchema(t *testing.T) {
	trigger := func(when string) string {
		return "CREATE TRIGGER sessions_no_delete BEFORE DELETE ON sessions\n  WHEN " + when + "\n  BEGIN SELECT RAISE(ABORT, 'only a tombstone is deleted'); END"
	}
	const drop = "DROP TRIGGER sessions_no_delete"
	for want, statements := range map[string][]string{
		"<nil>": {drop, trigger("OLD.destroyed_at IS NULL"), "ANALYZE"}, // the control
		"the schema lacks \"CREATE TRIGGER sessions_no_delete BEFORE DELETE ON sessions\\n  WHEN OLD.destroyed_at IS NULL": {drop, trigger("FALSE")},
		"the schema lacks \"CREATE TRIGGER events_no_update":                                                               {"DROP TRIGGER events_no_update"},
		"the schema lacks \"CREATE UNIQUE INDEX sessions_name":                                                             {"DROP INDEX sessions_name"},
		"the schema also has \"CREATE TRIGGER forget AFTER INSERT":                                                         {"CREATE TRIGGER forget AFTER INSERT ON jobs BEGIN SELECT 1; END"},
	} {
		if got := fault(t, prepared(t), statements...); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestVerifySessions: of two sessions without jobs, only the row of the one that was destroyed may be gone.
func TestVerifySessions(t *testing.T) {
	b := start(t, Options{})
	for _, id := range []string{"kept", "dead"} {
		s := Session{ID: id, Owner: "me", Name: id}
		b.want("durable", nil)(b.SessionOp(s, event("c"+id, audit.Allow), event("c"+id, audit.Commit)))
	}
	s := Session{ID: "dead", Owner: "me", Name: "dead", Generation: 1, DestroyedAt: time.Now()}
	b.want("durable", nil)(b.SessionOp(s, event("d", audit.Allow), event("d", audit.Commit)))
	b.stop()
	if got := fault(t, b.o.Dir, "DELETE FROM sessions WHERE id = 'dead'"); got != "<nil>" {
		t.Errorf("a tombstone that was pruned: %s", got)
	}
	got := fault(t, b.o.Dir, "DROP TRIGGER sessions_no_delete", "DELETE FROM sessions")
	if !strings.Contains(got, `the row of session "kept" is gone`) {
		t.Errorf("got %s", got)
	}
}

// TestFlippedBytes flips a bit of each body where it lies in the file, behind SQLite's back.
func TestFlippedBytes(t *testing.T) {
	dir := prepared(t)
	path := filepath.Join(dir, fileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for seq := 1; seq <= 10; seq++ {
		mark := fmt.Appendf(nil, `"sequence":"%020d`, seq)
		at := bytes.Index(whole, mark)
		if at < 0 {
			t.Fatalf("event %d is not in the file", seq)
		}
		b := slices.Clone(whole)
		b[at+len(mark)-1] ^= 0x01
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := OpenReader(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Verify(t.Context())
		if f := (*audit.Fault)(nil); !errors.As(err, &f) || f.Seq != int64(seq) {
			t.Errorf("event %d: got %v", seq, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPrune(t *testing.T) {
	clock := time.Unix(1_000_000, 0)
	b := start(t, Options{Now: func() time.Time { return clock }})
	prune := func() {
		t.Helper()
		b.prune()
		b.want("durable", nil)(b.SetAgent("x"))
	}
	retire := func(job string) {
		t.Helper()
		tk, err := b.Settled(job)
		b.queue.Flush()
		b.want("durable", nil)(tk, err)
		tk, err = b.Retired(job)
		b.queue.Flush()
		b.want("durable", nil)(tk, err)
	}
	for i := range 4 {
		job := fmt.Sprint("j", i)
		b.publish(job)
		b.want("durable", nil)(b.commit(job, int64(i)))
		if i != 2 {
			retire(job)
		}
	}
	s := Session{ID: "dead", Owner: "me", Name: "x"}
	b.want("durable", nil)(b.SessionOp(s, event("c", audit.Allow), event("c", audit.Commit)))
	s.Generation, s.DestroyedAt = 1, clock
	b.want("durable", nil)(b.SessionOp(s, event("d", audit.Allow), event("d", audit.Commit)))
	if prune(); b.verified().Events != 17 {
		t.Error("young events go")
	}
	clock = clock.Add(8 * 24 * time.Hour)
	prune()
	if _, err := b.Session(t.Context(), "dead"); !errors.Is(err, ErrNotFound) || b.verified().Events != 17 {
		t.Errorf("the tombstone stays, or events go: %v", err)
	}
	clock = clock.Add(90 * 24 * time.Hour)
	prune() // up to j2, whose directory is still kept
	if r := b.verified(); r.Events != 17-7+1 || b.phase("j0") != "none" || b.phase("j1") != "none" || b.phase("j2") != "committed" {
		t.Errorf("got %+v, %s", r, kinds(t, b.Reader))
	}
	if err := raw(t, b.o.Dir, `DELETE FROM events WHERE seq = 8`); code(err) != codeConstraint {
		t.Errorf("an event above pruned_seq: got %v", err)
	}
	retire("j2")
	prune()
	if r := b.verified(); r.Events != 2 || b.phase("j3") != "none" { // ledger.pruned, twice
		t.Errorf("got %+v, %s", r, kinds(t, b.Reader))
	}
	if got, err := b.Session(t.Context(), "s"); err != nil || got.Generation != 4 {
		t.Errorf("got %+v, %v", got, err)
	}
	b.publish("j4")
	b.want("durable", nil)(b.commit("j4", 4))
	b.verified()
	dir := b.o.Dir
	b.stop()
	b = start(t, Options{Dir: dir, RetentionEvents: 3, Now: func() time.Time { return clock }}) // j4 is open
	prune()
	if got := kinds(t, b.Reader); got != "j4/allow j4/start j4/commit" {
		t.Errorf("got %s", got)
	}
	retire("j4")
	prune()
	b.verified() // begins in the middle of a job
	if got := kinds(t, b.Reader); got != "" {
		t.Errorf("got %s", got)
	}
}

// TestPruneAtOpen: a command that ends before the writer's tick prunes too. The control is an opening without it.
func TestPruneAtOpen(t *testing.T) {
	clock := time.Unix(1_000_000, 0)
	o := Options{Dir: memory(t), Now: func() time.Time { return clock }}
	start(t, o).stop() // opened and closed
	clock = clock.Add(100 * 24 * time.Hour)
	l, err := open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got := (bed{l, t}).verified().Events; got != 3 {
		t.Errorf("the control: %d events", got)
	}
	if err := errors.Join(l.Reader.Close(), l.store.close()); err != nil {
		t.Error(err)
	}
	start(t, o).stop()
	r, err := OpenReader(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	var got []string
	if err := r.Events(t.Context(), Query{}, func(e Record) error { got = append(got, e.Kind); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := "[ledger.opened ledger.opened ledger.pruned ledger.closed]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestBackupBesideTheWriter: what an operator copies with a client of SQLite opens as it was.
func TestBackupBesideTheWriter(t *testing.T) {
	b := start(t, Options{Workspace: "ws"})
	b.publish("j")
	dir := t.TempDir()
	backup(t, b.o.Dir, dir)
	b.want("durable", nil)(b.commit("j", 0))
	c := start(t, Options{Dir: dir, Workspace: "ws"})
	if got := c.phase("j"); got != "publishing_outputs" {
		t.Errorf("got %s", got)
	}
}

func TestCloseIsBounded(t *testing.T) {
	hold := make(chan struct{})
	armed := false
	b := start(t, Options{Fault: func(p string) error {
		if armed && p == "before COMMIT" {
			<-hold
		}
		return nil
	}})
	b.want("durable", nil)(b.SetAgent("x"))
	armed = true
	tk, err := b.SetAgent("y") // a COMMIT in D state
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, io.ErrNoProgress)
	defer cancel()
	if err := b.Close(ctx); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
	if _, err := b.SetAgent("z"); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	close(hold)
	b.want("durable", nil)(tk, nil) // a late answer is an answer
	<-b.ended
}
