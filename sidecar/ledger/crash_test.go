package ledger

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger/batch"
)

// sqlite is an error as the driver gives it.
type sqlite int

func (e sqlite) Error() string { return fmt.Sprintf("sqlite %d", int(e)) }
func (e sqlite) Code() int     { return int(e) }

const (
	codeNoMem     = 7
	codeInterrupt = 9
	codeIOErr     = 10
)

// fateRow is a row of the table in 20-transaction.md section 4: what happens at a point of the writer, and the answers
// to the operation it happens to and to its neighbour in the same batch.
type fateRow struct {
	name, point string
	err         error
	mine, other string
	poisoned    bool
	there       bool // in the ledger afterwards, as a reader sees it
}

func fateTable() []fateRow {
	const insert = "before " + sqlBegin
	return []fateRow{
		{"statement_constraint", insert, sqlite(19), "refused", "durable", false, false},
		{"statement_trigger", insert, sqlite(19 | 7<<8), "refused", "durable", false, false},
		{"statement_busy", insert, sqlite(5), "absent", "absent", false, false},
		{"statement_full", insert, sqlite(13), "absent", "absent", false, false},
		{"statement_full_done", "after " + sqlBegin, sqlite(13), "absent", "absent", false, false},
		{"statement_ioerr", insert, sqlite(10 | 3<<8), "absent", "absent", true, false},
		{"statement_nomem", insert, sqlite(7), "absent", "absent", true, false},
		{"statement_corrupt", insert, sqlite(11), "absent", "absent", true, false},
		{"statement_strange", insert, errors.New("bad connection"), "absent", "absent", true, false},
		{"begin_busy", "before BEGIN IMMEDIATE", sqlite(5), "absent", "absent", false, false},
		{"begin_busy_snapshot", "before BEGIN IMMEDIATE", sqlite(5 | 2<<8), "absent", "absent", false, false},
		{"begin_full", "before BEGIN IMMEDIATE", sqlite(13), "absent", "absent", false, false},
		{"begin_ioerr", "before BEGIN IMMEDIATE", sqlite(10), "absent", "absent", true, false},
		{"commit_full", "before COMMIT", sqlite(13), "absent", "absent", false, false},
		{"commit_busy", "before COMMIT", sqlite(5), "absent", "absent", false, false},
		{"commit_constraint", "before COMMIT", sqlite(19), "absent", "absent", false, false},
		{"commit_ioerr_fsync", "before COMMIT", sqlite(10 | 4<<8), "unknown", "unknown", true, false},
		{"commit_ioerr_fsync_done", "after COMMIT", sqlite(10 | 4<<8), "unknown", "unknown", true, true},
		{"commit_ioerr_shmsize", "after COMMIT", sqlite(10 | 19<<8), "unknown", "unknown", true, true},
		{"commit_nomem", "after COMMIT", sqlite(codeNoMem), "unknown", "unknown", true, true},
		{"commit_corrupt", "before COMMIT", sqlite(11), "unknown", "unknown", true, false},
		{"commit_interrupt", "before COMMIT", sqlite(codeInterrupt), "unknown", "unknown", true, false},
		{"commit_other", "before COMMIT", sqlite(21), "unknown", "unknown", true, false},
		{"commit_done", "none", nil, "durable", "durable", false, true},
	}
}

// fateOf runs one row on a fresh ledger. wrap is the identity, or a store that judges otherwise.
func fateOf(t *testing.T, row fateRow, wrap func(*store) batch.Store) (got fateRow, again string) {
	t.Helper()
	armed := false
	fault := func(point string) error {
		if armed && point == row.point {
			armed = false
			return row.err
		}
		return nil
	}
	l, err := open(t.Context(), Options{Dir: memory(t), Fault: fault})
	if err != nil {
		t.Fatal(err)
	}
	mine, err := l.Begin(journal("mine"), event("mine", audit.Allow))
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Record(event("other", audit.Deny))
	if err != nil {
		t.Fatal(err)
	}
	armed = true
	s := wrap(l.store)
	l.queue.Round(s)
	trail := kinds(t, l.Reader)
	got = fateRow{row.name, row.point, row.err, string(mine.Ack()), string(other.Ack()), l.Poisoned() != nil, strings.Contains(trail, "mine/allow")}
	if there := strings.Contains(trail, "other/deny"); there != (other.Ack() == Durable) && other.Ack() != Unknown {
		got.other += ", a lie"
	}
	// what comes next
	next, err := l.Begin(journal("next"), event("next", audit.Allow))
	if errors.Is(err, ErrPoisoned) {
		return got, "poisoned"
	}
	if err != nil {
		t.Fatal(err)
	}
	l.queue.Round(s)
	if _, err := l.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	return got, string(next.Ack())
}

func TestFateTable(t *testing.T) {
	for _, row := range fateTable() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got, again := fateOf(t, row, func(s *store) batch.Store { return s })
			if got != row {
				t.Errorf("got  %+v\nwant %+v", got, row)
			}
			if want := map[bool]string{true: "poisoned", false: "durable"}[row.poisoned]; again != want {
				t.Errorf("the next operation: got %s, want %s", again, want)
			}
		})
	}
}

// hopeful judges a COMMIT as one would who has not read about fsync: an error means that nothing was done.
type hopeful struct {
	*store
	codes []int
}

func (h hopeful) Commit() error {
	err := h.store.Commit()
	for _, c := range h.codes {
		if code(err) == c {
			return fmt.Errorf("%w: %w", batch.ErrAbsent, err)
		}
	}
	return err
}

// TestFateTableControl holds hopeful stores against the same table: it must reject them.
func TestFateTableControl(t *testing.T) {
	for name, c := range map[string]int{"ioerrAsAbsent": codeIOErr, "nomemAsAbsent": codeNoMem} {
		rejected := false
		for _, row := range fateTable() {
			if code(row.err) == c && strings.HasSuffix(row.point, "COMMIT") {
				got, _ := fateOf(t, row, func(s *store) batch.Store { return hopeful{s, []int{c}} })
				rejected = rejected || got != row
			}
		}
		if !rejected {
			t.Errorf("%s passes the table", name)
		}
	}
}

// sweep fails the n-th statement of a job's way, for every n up to the first lie, and returns how many there are and what
// was a lie: an operation that is durable and not there, or absent or refused and there.
func sweep(t *testing.T, c sqlite, wrap func(*store) batch.Store) (points int, lies []string) {
	t.Helper()
	for n := 1; ; n++ {
		left := -1
		fired := ""
		l, err := open(t.Context(), Options{Dir: memory(t), Fault: func(p string) error {
			if left--; left != 0 {
				return nil
			}
			if fired = p; p == "after COMMIT" && c == codeFull {
				return nil // SQLite gives FULL only before the commit frame is whole
			}
			return c
		}})
		if err != nil {
			t.Fatal(err)
		}
		left = n
		s := wrap(l.store)
		for _, step := range []struct {
			kind string
			put  func() (*Ticket, error)
		}{
			{"allow", func() (*Ticket, error) { return l.Begin(journal("j"), event("j", audit.Allow)) }},
			{"start", func() (*Ticket, error) { return l.Publishing(journal("j"), event("j", audit.Start)) }},
			{"commit", func() (*Ticket, error) {
				return l.Commit("j", Session{ID: "s", Owner: "me", Name: "default"}, event("j", audit.Commit))
			}},
			{"rollback", func() (*Ticket, error) { return l.RolledBack("j", event("j", audit.Error), event("j", audit.Rollback)) }},
		} {
			tk, err := step.put()
			if err != nil {
				break // poisoned
			}
			l.queue.Round(s)
			there := strings.Contains(kinds(t, l.Reader), "j/"+step.kind)
			if ack := tk.Ack(); ack != Unknown && there != (ack == Durable) {
				lies = append(lies, fmt.Sprintf("%s: %s is %s, there: %v", fired, step.kind, ack, there))
			}
		}
		if _, err := l.Verify(t.Context()); err != nil {
			lies = append(lies, fmt.Sprintf("%s: %v", fired, err))
		}
		if left > 0 || lies != nil {
			return n - 1, lies
		}
	}
}

func TestFaultSweep(t *testing.T) {
	for _, c := range []sqlite{codeFull, codeIOErr} {
		points, lies := sweep(t, c, func(s *store) batch.Store { return s })
		if points < 40 || lies != nil {
			t.Errorf("code %d: %d points, %q", c, points, lies)
		}
	}
	if _, lies := sweep(t, codeIOErr, func(s *store) batch.Store { return hopeful{s, []int{codeIOErr}} }); lies == nil {
		t.Error("the control, a hopeful store, tells no lie")
	}
}

func TestDriverPanics(t *testing.T) {
	var point string
	l, err := open(t.Context(), Options{Dir: memory(t), Fault: func(p string) error {
		if p == point {
			panic("driver")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	point = "after COMMIT"
	tk, err := l.SetAgent("x")
	l.queue.Round(l.store)
	if err != nil || tk.Ack() != Unknown || l.Poisoned() == nil {
		t.Errorf("got %s, %v, %v", tk.Ack(), tk.Err(), err)
	}
}

// TestMoved removes or replaces the files under the writer, before a round or right before its COMMIT: nothing that is
// said to be durable may be lost. The control is a store that does not look.
func TestMoved(t *testing.T) {
	moves := map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"away":    func(dir string) error { return os.Rename(dir, filepath.Join(filepath.Dir(dir), "away")) },
		"log":     func(dir string) error { return os.Remove(filepath.Join(dir, fileName+"-wal")) },
		"replaced": func(dir string) error {
			path := filepath.Join(dir, fileName)
			return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path))
		},
	}
	for name, move := range moves {
		for _, at := range []string{"before BEGIN", "before COMMIT"} {
			for _, look := range []bool{true, false} {
				moved := false
				dir := filepath.Join(memory(t), "state")
				l, err := open(t.Context(), Options{Dir: dir, Fault: func(p string) error {
					if moved || !strings.HasPrefix(p, "after "+sqlBegin) {
						return nil
					}
					moved = true
					return move(dir)
				}})
				if err != nil {
					t.Fatal(err)
				}
				if !look {
					l.store.places = nil
				}
				if at == "before BEGIN" {
					if moved = true; move(dir) != nil {
						t.Fatal("not moved")
					}
				}
				tk, err := l.Begin(journal("j"), event("j", audit.Allow))
				if err != nil {
					t.Fatal(err)
				}
				l.queue.Round(l.store)
				if kept := tk.Ack() == Absent && errors.Is(tk.Err(), batch.ErrMoved) && errors.Is(l.Poisoned(), batch.ErrMoved); kept != look {
					t.Errorf("%s %s, look %v: got %s, %v, poisoned by %v", name, at, look, tk.Ack(), tk.Err(), l.Poisoned())
				}
				if !look && tk.Ack() != Durable {
					t.Errorf("the control, %s %s, is %s, %v: the look is not what refuses", name, at, tk.Ack(), tk.Err())
				}
				if _, err := l.Job(t.Context(), "j"); look && !errors.Is(err, ErrNotFound) {
					t.Errorf("%s %s: it is there: %v", name, at, err)
				}
			}
		}
	}
}

// TestPoisoned is life after it: no write, reads go on, close does not touch the writer's connection.
func TestPoisoned(t *testing.T) {
	armed := false
	b := start(t, Options{Fault: func(p string) error {
		if armed && p == "before PRAGMA wal_checkpoint" {
			return sqlite(codeIOErr)
		}
		return nil
	}})
	b.publish("j")
	b.want("durable", nil)(b.SetAgent("x"))
	armed = true
	b.checkpoint()
	if !errors.Is(b.Poisoned(), sqlite(codeIOErr)) {
		t.Fatalf("got %v", b.Poisoned())
	}
	if _, err := b.commit("j", 0); !errors.Is(err, ErrPoisoned) {
		t.Errorf("got %v", err)
	}
	if b.phase("j") != "publishing_outputs" || b.verified().Events != 3 {
		t.Error("reads do not go on")
	}
	b.stop()
	if _, err := b.store.conn.ExecContext(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the writer's connection was closed: %v", err)
	}
}

// TestCheckpoint moves the log between rounds and never cuts it; FULL and BUSY are no reason to stop.
func TestCheckpoint(t *testing.T) {
	for _, c := range []int{0, 13, 5} {
		armed := false
		var checkpoints atomic.Int64
		b := start(t, Options{Fault: func(p string) error {
			if !armed || p != "before PRAGMA wal_checkpoint" {
				return nil
			}
			if checkpoints.Add(1); c != 0 {
				return sqlite(c)
			}
			return nil
		}})
		b.want("durable", nil)(b.SetAgent("x")) // the writer is idle behind it
		armed = true
		size := int64(0)
		for i := range 110 {
			b.want("durable", nil)(b.SetAgent(fmt.Sprint(i)))
			info, err := os.Stat(b.file() + "-wal")
			if err != nil || info.Size() < size {
				t.Fatalf("the log was cut from %d to %d, %v", size, info.Size(), err)
			}
			size = info.Size()
		}
		if got := checkpoints.Load(); got != 1 || b.Poisoned() != nil {
			t.Errorf("code %d: got %d checkpoints, %v", c, got, b.Poisoned())
		}
	}
}

// TestShortReaders: whoever reads slowly must not hold the log. The control is one that keeps its transaction open.
func TestShortReaders(t *testing.T) {
	kept := func(during func(b bed, write func())) bool {
		b := start(t, Options{})
		b.publish("j")
		frames := func() (busy, frames, moved int) {
			db, err := sql.Open("sqlite", dsn(b.file(), "rw"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }() // a reader is left
			if err := db.QueryRowContext(t.Context(), "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &frames, &moved); err != nil {
				t.Fatal(err)
			}
			return busy, frames, moved
		}
		var all, moved int
		during(b, func() {
			b.want("durable", nil)(b.undo("j"))
			_, all, moved = frames()
		})
		return moved < all
	}
	if kept(func(b bed, write func()) {
		once := false
		if err := b.Events(t.Context(), Query{}, func(Record) error {
			if !once {
				once = true
				write()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}) {
		t.Error("a slow reader of Events keeps the log")
	}
	if !kept(func(b bed, write func()) { // longReader
		rows, err := b.db.QueryContext(t.Context(), sqlEvents+"1")
		if err != nil || !rows.Next() {
			t.Fatal(err)
		}
		write()
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}) {
		t.Error("the control does not keep the log")
	}
}

// TestFullVolume is a real one: nothing is done, nothing is poisoned, and it goes on once there is room.
func TestFullVolume(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil { // a failed test may have left the ledger open
			t.Error(err)
		}
	})
	b := start(t, Options{Dir: dir})
	b.publish("j")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	full := false
	for i := 0; i < 100 && !full; i++ { // until the room that the log has is used up
		tk := b.wait(b.SetAgent(strings.Repeat(fmt.Sprint(i%10), 8000)))
		if full = tk.Ack() == Absent; full && code(tk.Err()) != codeFull {
			t.Errorf("got %v", tk.Err())
		}
	}
	if !full || b.Poisoned() != nil {
		t.Fatalf("full %v, poisoned by %v", full, b.Poisoned())
	}
	if got := kinds(t, b.Reader); got != "j/allow j/start" {
		t.Errorf("got %s", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	b.want("durable", nil)(b.undo("j"))
	b.verified()
}

// child runs a scene of TestMain's in another process and returns it with its standard output.
func child(t testing.TB, scene, dir string, wrap ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	args := append(wrap, os.Args[0], "-test.run=^$")
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LEDGER_SCENE="+scene, "LEDGER_DIR="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func TestMain(m *testing.M) {
	if s := os.Getenv("LEDGER_SCENE"); s != "" {
		if err := scene(s, os.Getenv("LEDGER_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// scene is what a child does. "kill N POINT" dies when the writer comes to POINT for the N-th time.
func scene(name, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	verb, rest, _ := strings.Cut(name, " ")
	left := -1
	point := ""
	if verb == "kill" || verb == "boast" {
		if _, err := fmt.Sscanf(rest, "%d", &left); err != nil {
			return err
		}
		_, point, _ = strings.Cut(rest, " ")
	}
	if verb == "trust" { // trustPageCache: the log goes into the ledger as it is read
		db, err := sql.Open("sqlite", dsn(filepath.Join(dir, fileName), "rw"))
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
		return errors.Join(err, db.Close())
	}
	l, err := Open(ctx, Options{Dir: dir, Fault: func(p string) error {
		if p == point {
			if left--; left == 0 {
				if verb == "boast" { // ackBeforeCommit
					fmt.Println("acked commit")
				}
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		return nil
	}})
	if err != nil {
		return err
	}
	fmt.Println("opened", l.Opening().Epoch)
	if verb == "own" {
		return l.Close(ctx)
	}
	step := func(what string, t *Ticket, err error) error {
		if err != nil {
			return err
		}
		<-t.Done()
		if t.Ack() == Durable {
			fmt.Println("acked", what)
		}
		return t.Err()
	}
	t, err := l.Begin(journal("j"), event("j", audit.Allow))
	if err := step("begin", t, err); err != nil {
		return err
	}
	t, err = l.Publishing(journal("j"), event("j", audit.Start))
	if err := step("publishing", t, err); err != nil {
		return err
	}
	t, err = l.Commit("j", Session{ID: "s", Owner: "me", Name: "default"}, event("j", audit.Commit))
	if err := step("commit", t, err); err != nil {
		return err
	}
	return l.Close(ctx)
}

// killed runs a scene that dies and returns the last thing that it knew to be durable, and the phase after a restart.
func killed(t *testing.T, name string) (acked, phase string) {
	t.Helper()
	dir := t.TempDir()
	cmd, out := child(t, name, dir)
	for out.Scan() {
		if what, ok := strings.CutPrefix(out.Text(), "acked "); ok {
			acked = what
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%s: the child was not killed: %v", name, err)
	}
	for range 2 { // the second start finds what the first left
		b := start(t, Options{Dir: dir})
		phase = b.phase("j")
		b.verified()
		s, err := b.Session(t.Context(), "s")
		if committed := phase == "committed"; committed != (err == nil) || committed && s.Generation != 1 {
			t.Errorf("%s: phase %s with session %v, %v", name, phase, s, err)
		}
		if committed := strings.Contains(kinds(t, b.Reader), "j/commit"); committed != (phase == "committed") {
			t.Errorf("%s: phase %s, event commit: %v", name, phase, committed)
		}
		b.stop()
	}
	return acked, phase
}

func phaseAfter(acked string) string {
	return map[string]string{"": "none", "begin": "worker_running", "publishing": "publishing_outputs", "commit": "committed"}[acked]
}

// TestKillBetween kills the owner before and after every statement of a job's way, and starts again.
func TestKillBetween(t *testing.T) {
	order := []string{"none", "worker_running", "publishing_outputs", "committed"}
	at := func(phase string) int {
		for i, p := range order {
			if p == phase {
				return i
			}
		}
		return -1
	}
	for name, want := range map[string]string{
		"2 before COMMIT": "none", // the first round is that of the schema
		"3 before COMMIT": "none", "3 after COMMIT": "worker_running",
		"4 before COMMIT": "worker_running", "4 after COMMIT": "publishing_outputs",
		"6 before BEGIN IMMEDIATE": "publishing_outputs",
		"1 after " + sqlCommit:     "publishing_outputs", "1 after " + sqlInsert: "publishing_outputs",
		"5 before COMMIT": "publishing_outputs", "5 after COMMIT": "committed",
	} {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%.24s", name), " ", "_"), func(t *testing.T) {
			t.Parallel()
			acked, phase := killed(t, "kill "+name)
			if phase != want {
				t.Errorf("got phase %s, want %s", phase, want)
			}
			if at(phase) < at(phaseAfter(acked)) {
				t.Errorf("%q was durable, and is %s", acked, phase)
			}
		})
	}
	// the control: whoever answers before the COMMIT is found out
	if acked, phase := killed(t, "boast 5 before COMMIT"); at(phase) >= at(phaseAfter(acked)) {
		t.Errorf("acked %q, phase %s: an early answer is not noticed", acked, phase)
	}
}

func TestTwoProcesses(t *testing.T) {
	b := start(t, Options{})
	b.publish("j")
	// a reader in another process follows, here: another Reader
	r, err := OpenReader(b.o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	seen := make(chan int64, 100)
	stop := errors.New("stop")
	ended := make(chan error, 1)
	go func() {
		ended <- r.Follow(ctx, Query{Kind: audit.LedgerOpened}, func(rec Record) error { seen <- rec.Seq; return nil })
	}()
	next := func() int64 {
		select {
		case seq := <-seen:
			return seq
		case <-time.After(20 * time.Second):
			t.Fatal("nothing to follow")
			return 0
		}
	}
	if got := next(); got != 1 {
		t.Errorf("got %d", got)
	}
	// another owner takes over, whatever the lock says
	cmd, out := child(t, "own", b.o.Dir)
	for out.Scan() {
		if out.Text() != "opened 2" {
			t.Errorf("got %s", out.Text())
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != 4 {
		t.Errorf("got %d", got)
	}
	cancel(stop)
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	// and we are fenced
	b.want("absent", ErrFenced)(b.commit("j", 0))
	if !errors.Is(b.Poisoned(), ErrFenced) || b.phase("j") != "publishing_outputs" {
		t.Errorf("poisoned by %v, phase %s", b.Poisoned(), b.phase("j"))
	}
	if err := raw(t, b.o.Dir, "BEGIN IMMEDIATE", "ROLLBACK"); err != nil {
		t.Errorf("a fenced writer locks the new owner out: %v", err)
	}
}

// deaf believes what it read first: cachedChainHead, and no fence.
type deaf struct {
	*store
	head  audit.Head
	known bool
}

func (d *deaf) Begin() error {
	if err := d.store.Begin(); err != nil && !errors.Is(err, ErrFenced) {
		return err
	} else if err != nil {
		if _, err := d.exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
	}
	if d.known {
		d.store.head = d.head
	}
	return nil
}

func (d *deaf) Commit() error {
	d.head, d.known = d.store.head, true
	return d.store.Commit()
}

// TestHeadIsRead: after a transaction that is absent, the next event follows the last that is there.
func TestHeadIsRead(t *testing.T) {
	run := func(wrap func(*store) batch.Store) error {
		armed := false
		l, err := open(t.Context(), Options{Dir: memory(t), Fault: func(p string) error {
			if armed && p == "before COMMIT" {
				armed = false
				return sqlite(codeFull)
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		s := wrap(l.store)
		for i := range 4 {
			armed = i == 2
			job := fmt.Sprint("j", i)
			if _, err := l.Begin(journal(job), event(job, audit.Allow)); err != nil {
				t.Fatal(err)
			}
			l.queue.Round(s)
		}
		_, err = l.Verify(t.Context())
		return err
	}
	if err := run(func(s *store) batch.Store { return s }); err != nil {
		t.Error(err)
	}
	if err := run(func(s *store) batch.Store { return &deaf{store: s} }); !errors.Is(err, audit.ErrTrail) {
		t.Errorf("the control: a cached head gives %v", err)
	}
}

// TestFenceControl: without the comparison of epochs two owners write.
func TestFenceControl(t *testing.T) {
	l, err := open(t.Context(), Options{Dir: memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	other, err := open(t.Context(), Options{Dir: l.o.Dir})
	if err != nil {
		t.Fatal(err)
	}
	if other.Opening().Epoch != 2 {
		t.Errorf("got %+v", other.Opening())
	}
	tk, err := l.SetAgent("x")
	if err != nil {
		t.Fatal(err)
	}
	l.queue.Round(&deaf{store: l.store})
	if tk.Ack() != Durable {
		t.Errorf("the control is %s, %v: the fence is not what refuses", tk.Ack(), tk.Err())
	}
}
