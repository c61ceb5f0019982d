package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// settled makes a world with two commits whose ledger is all in one file.
func settled(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.want(w.sh("echo first >{x}", "x=build/a.v"), exitOK, job.OK)
	w.want(w.sh("echo second >{y}", "y=build/b.v"), exitOK, job.OK)
	w.sql()
	return w
}

// sql runs statements on the ledger while nobody has it open, and moves its log into the file.
func (w *world) sql(statements ...string) {
	w.t.Helper()
	if a := w.trySQL(statements...); a.exit != 0 {
		w.t.Fatalf("%q: %v", statements, a)
	}
}

func (w *world) trySQL(statements ...string) answer {
	w.t.Helper()
	const script = `import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
for s in sys.argv[2:] + ["PRAGMA wal_checkpoint(TRUNCATE)"]: c.execute(s).fetchall()`
	return w.other("python3", append([]string{"-c", script, w.ledger()}, statements...)...).start().wait()
}

func (w *world) ledger() string { return w.path(".eda-sidecar/state/ledger.db") }

// patch changes the ledger's bytes.
func (w *world) patch(change func(b []byte) []byte) {
	w.t.Helper()
	b, err := os.ReadFile(w.ledger())
	ok(w.t, err)
	ok(w.t, os.WriteFile(w.ledger(), change(b), 0o600))
}

// TestDamagedLedger: a ledger that cannot be trusted stops every mutating call, with the reason; nothing is changed by
// that, neither files nor the ledger. The control is the same world without damage.
func TestDamagedLedger(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(w *world)
		exit   int
		says   string
	}{
		"none": {func(*world) {}, exitOK, ""},
		"page": {func(w *world) {
			w.patch(func(b []byte) []byte { // the type of a page in the middle
				size := int(binary.BigEndian.Uint16(b[16:]))
				b[len(b)/size/2*size] ^= 0xff
				return b
			})
		}, exitInternal, "the ledger is damaged"},
		"truncated": {func(w *world) { w.patch(func(b []byte) []byte { return b[:len(b)/2] }) }, exitInternal, "the ledger is damaged"},
		"garbage":   {func(w *world) { w.patch(func(b []byte) []byte { return bytes.Repeat([]byte("garbage "), len(b)/8) }) }, exitInternal, "the ledger is damaged"},
		"newer": {func(w *world) {
			w.patch(func(b []byte) []byte {
				binary.BigEndian.PutUint32(b[60:], 99) // user_version
				return b
			})
		}, exitUsage, "newer"},
		"other_database": {func(w *world) {
			ok(w.t, os.Remove(w.ledger()))
			w.sql("CREATE TABLE t (x)")
		}, exitInternal, "the ledger is damaged"},
		"removed": {func(w *world) { ok(w.t, os.RemoveAll(w.path(".eda-sidecar/state"))) }, exitInternal, "missing"},
		"of_another_workspace": {func(w *world) {
			other := settled(w.t)
			ok(w.t, os.RemoveAll(w.path(".eda-sidecar/state")))
			ok(w.t, os.Rename(other.path(".eda-sidecar/state"), w.path(".eda-sidecar/state")))
		}, exitUsage, "another workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := settled(t)
			c.damage(w)
			before, ledger := w.snapshot(), w.digest()
			if name == "none" {
				w.sound()
				return
			}
			w.refused = true
			for _, args := range [][]string{w.shArgs("echo third >{x}", "x=build/a.v"), {"run", "--", "echo", "it ran"}, {"recover"}} {
				a := w.do(args...)
				if a.exit != c.exit || !strings.Contains(a.err, c.says) || strings.Contains(a.out, "it ran") || !strings.Contains(a.err, "hint: ") {
					t.Errorf("%q: %v", args, a)
				}
			}
			if a := w.do("doctor"); a.exit != exitNoSupport || !strings.Contains(a.out, "FAIL") || !strings.Contains(a.out, c.says) {
				t.Errorf("doctor: %v", a)
			}
			if after := w.snapshot(); after != before {
				t.Errorf("changed:\n%s\nwas\n%s", after, before)
			}
			if w.digest() != ledger {
				t.Error("the ledger was changed")
			}
			if got := len(w.list(".eda-sidecar/jobs")); got != 2 {
				t.Errorf("%d job directories", got)
			}
		})
	}
}

// TestWayOut: what keeps every command from the workspace names the page that helps, and what that page says helps.
func TestWayOut(t *testing.T) {
	page, err := os.ReadFile("../../docs/HACKING.md")
	ok(t, err)
	const section = "## A lost or damaged ledger"
	if !strings.Contains(string(page), section) {
		t.Fatalf("docs/HACKING.md has no %q", section)
	}
	side := func(w *world, name string) string { return w.path(".eda-sidecar/" + name) }
	for name, c := range map[string]struct {
		damage, mend func(w *world)
		audit        bool // it can be read all the same
	}{
		"ledger.db": {
			func(w *world) {
				system(w.t, "cp", w.ledger(), side(w, "copy.db"))
				w.patch(func(b []byte) []byte { return bytes.Repeat([]byte("garbage "), len(b)/8) })
			}, func(w *world) { ok(w.t, os.Rename(side(w, "copy.db"), w.ledger())) }, false,
		},
		"owner.lock": {
			func(w *world) { w.write(".eda-sidecar/owner.lock", "{garbage") },
			func(w *world) {
				const id = `import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT v FROM meta WHERE k='workspace_id'").fetchone()[0])`
				w.write(".eda-sidecar/owner.lock", fmt.Sprintf(`{"workspace_id":%q}`, system(w.t, "python3", "-c", id, w.ledger())))
			}, true,
		},
		"jobs": {
			func(w *world) {
				ok(w.t, os.Rename(side(w, "jobs"), side(w, "kept")))
				w.write(".eda-sidecar/jobs", "not a directory")
			},
			func(w *world) {
				ok(w.t, os.Remove(side(w, "jobs")))
				ok(w.t, os.Rename(side(w, "kept"), side(w, "jobs")))
			}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := settled(t)
			c.damage(w)
			w.refused = true
			for _, args := range [][]string{{"run", "--", "true"}, {"recover"}, {"recover", "--dry-run"}, {"doctor"}, {"audit"}, {"audit", "verify"}} {
				a := w.do(args...)
				said := strings.Contains(a.err+a.out, "docs/HACKING.md") && strings.Contains(a.err+a.out, strings.TrimPrefix(section, "## "))
				if args[0] == "audit" && c.audit {
					if a.exit != exitOK {
						t.Errorf("%q: %v", args, a)
					}
				} else if !said || a.exit != exitInternal && args[0] != "doctor" || strings.Contains(a.err, "audit --job") {
					t.Errorf("%q: %v", args, a)
				}
			}
			c.mend(w)
			w.want(w.sh("echo third >{x}", "x=build/a.v"), exitOK, job.OK)
			w.sound()
		})
	}
}

// TestNoSide: a name .eda-sidecar that is no directory is said to be what it is, and left alone. The control is none.
func TestNoSide(t *testing.T) {
	t.Parallel()
	for says, side := range map[string]func(w *world){
		"":                        func(*world) {},
		"a file named":            func(w *world) { w.write(".eda-sidecar", "theirs") },
		"a symbolic link named":   func(w *world) { ok(w.t, os.Symlink("build", w.path(".eda-sidecar"))) },
		"a symbolic link named .": func(w *world) { ok(w.t, os.Symlink("nowhere", w.path(".eda-sidecar"))) },
	} {
		w := newWorld(t)
		side(w)
		if says == "" {
			w.sound()
			continue
		}
		w.refused = true
		for _, args := range [][]string{{"run", "--", "true"}, {"recover", "--dry-run"}, {"audit"}, {"doctor"}} {
			if a := w.do(args...); a.exit != exitUsage || !strings.Contains(a.err, says) || !strings.Contains(a.err, "move this away") {
				t.Errorf("%q: %v", args, a)
			}
		}
		if names := w.list("build"); len(names) != 2 {
			t.Errorf("%s: build holds %q", says, names)
		}
	}
}

// TestNoAccess: on a read-only mount, and for another user, the trail cannot be read, and the program says what can be
// done. A copy can.
func TestNoAccess(t *testing.T) {
	t.Parallel()
	w := settled(t)
	copied := filepath.Join(t.TempDir(), "copy")
	system(t, "cp", "-r", w.path(".eda-sidecar/state"), copied)
	refused := func(prefix []string, says string, args ...string) {
		t.Helper()
		a := w.command(prefix, args...).start().wait()
		if a.exit != exitUsage || !strings.Contains(a.err, says) || !strings.Contains(a.err, "hint: be the user") {
			t.Errorf("%q: %v", args, a)
		}
	}
	path, err := program()
	ok(t, err)
	system(t, "chmod", "-R", "a+rX", w.path(".eda-sidecar"))
	for dir := filepath.Dir(w.dir); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		ok(t, os.Chmod(dir, 0o755))
	}
	bin := filepath.Join(t.TempDir(), "eda-sidecar")
	system(t, "cp", path, bin)
	nobody := []string{"sh", "-c", `shift; exec setpriv --reuid 65534 --regid 65534 --clear-groups "$0" "$@"`, bin}
	for _, args := range [][]string{{"audit"}, {"audit", "verify"}} {
		refused(nobody, "may be written", args...)
	}
	for _, args := range [][]string{{"recover"}, {"recover", "--dry-run"}} {
		refused(nobody, "permission denied", args...)
	}
	ok(t, os.Chmod(w.path(".eda-sidecar/state"), 0o700))
	refused(nobody, "permission denied", "audit")
	mount(t, w.dir, w.dir, "", unix.MS_BIND, "")
	ok(t, unix.Mount("", w.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, args := range [][]string{{"audit"}, {"audit", "verify"}} {
		refused(nil, "may be written", args...)
	}
	for _, args := range [][]string{{"recover"}, {"recover", "--dry-run"}} {
		refused(nil, "read-only", args...)
	}
	if a := w.do("audit", "verify", "--state-dir", copied); a.exit != exitOK {
		t.Errorf("a copy: %v", a)
	}
}

func (w *world) digest() string {
	b, err := os.ReadFile(w.ledger())
	if os.IsNotExist(err) {
		return "absent"
	}
	ok(w.t, err)
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// TestForgedTrail: whatever is changed in the trail behind SQLite's back, audit verify names it.
func TestForgedTrail(t *testing.T) {
	for name, forge := range map[string]func(w *world){
		"a byte of an event": func(w *world) {
			w.patch(func(b []byte) []byte {
				forged := bytes.ReplaceAll(b, []byte("io.eda-sidecar.commit"), []byte("io.eda-sidecar.Commit"))
				if bytes.Equal(forged, b) {
					w.t.Fatal("no commit event in the file")
				}
				return forged
			})
		},
		"an event removed": func(w *world) {
			w.sql("DROP TRIGGER events_no_delete", "DELETE FROM events WHERE kind = 'start'")
		},
		"the last event removed": func(w *world) {
			w.sql("DROP TRIGGER events_no_delete", "DELETE FROM events WHERE seq >= (SELECT MAX(seq) FROM events WHERE kind = 'commit')")
		},
		"the path of an output": func(w *world) {
			w.sql("DROP TRIGGER events_no_update", "UPDATE events SET body = replace(body, 'build/a.v', 'build/z.v') WHERE kind = 'commit'")
		},
		"the row of a job removed": func(w *world) { w.sql("DROP TRIGGER jobs_no_delete", "DELETE FROM jobs") },
		"a phase":                  func(w *world) { w.sql("DROP TRIGGER jobs_final", "UPDATE jobs SET phase = 'rolled_back'") },
		"a journal": func(w *world) {
			w.sql("DROP TRIGGER jobs_final", "UPDATE jobs SET doc = replace(doc, 'build/a.v', '../a.v')")
		},
		"a session's state": func(w *world) { w.sql("UPDATE sessions SET state = '{}', generation = generation + 1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := settled(t)
			if a := w.do("audit", "verify"); a.exit != exitOK {
				t.Fatalf("control: without the forgery: %v", a)
			}
			forge(w)
			if a := w.do("audit", "verify"); a.exit != exitInternal || !strings.Contains(a.err, "verify") {
				t.Errorf("verify: %v", a)
			}
		})
	}
}

// TestLedgerGuardsItself: SQL by whoever has the file cannot change what is final.
func TestLedgerGuardsItself(t *testing.T) {
	t.Parallel()
	w := settled(t)
	for _, s := range []string{
		"UPDATE events SET body = '{}'", "DELETE FROM events", "UPDATE jobs SET phase = 'rolled_back'", "DELETE FROM jobs",
		"UPDATE sessions SET state = '{}'", "DELETE FROM sessions", "UPDATE jobs SET phase = 'nonsense'",
	} {
		if a := w.trySQL(s); a.exit == 0 {
			t.Errorf("%s: not refused", s)
		}
	}
	w.sound()
}

// TestRestoredLedger: jobs that an older copy of the ledger calls open were decided since, so they are left alone, with
// their targets held; directories that it does not know are kept for an operator.
func TestRestoredLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config("queue_timeout: 300ms")
	copied := filepath.Join(t.TempDir(), "copy")
	// three goes on after the copy: it is slow to sync build/, between publication and commit
	ok(t, os.MkdirAll(w.path("ctl"), 0o755))
	r := w.command(nil, w.shArgs(three, threeOuts...)...).start()
	w.until("staging", w.staged)
	detached := w.attach(r, "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=1000000", "-P", w.path("build"))
	w.write("ctl/go", "")
	w.until("publication", func() bool { return w.read("new/c.v") == "new\n" })
	system(t, "cp", "-a", w.path(".eda-sidecar/state"), copied)
	a := r.wait()
	detached()
	w.want(a, exitOK, job.OK)
	later := w.sh("echo later >{x}", "x=build/b.v")
	w.want(later, exitOK, job.OK)

	ok(t, os.RemoveAll(w.path(".eda-sidecar/state")))
	system(t, "cp", "-a", copied, w.path(".eda-sidecar/state"))
	unchanged := func(when string) {
		t.Helper()
		w.is("build/a.v", "new\n", "build/b.v", "later\n", "new/c.v", "new\n")
		found := w.recovered()
		if len(found) == 0 || found[0].Job != a.Job || found[0].Resolution != txn.Quarantined {
			t.Errorf("%s: recovery: %+v", when, found)
		}
		if slices.Contains(w.events(a.Job), "rollback") || slices.Contains(w.events(a.Job), "recovered") {
			t.Errorf("%s: %q", when, w.events(a.Job))
		}
		w.is("build/a.v", "new\n", "build/b.v", "later\n", "new/c.v", "new\n")
	}
	unchanged("at the first start")
	if !slices.Contains(w.list(".eda-sidecar/conflicts"), later.Job) {
		t.Errorf("conflicts/ holds %q, not the directory of the job that the ledger does not know", w.list(".eda-sidecar/conflicts"))
	}
	if a := w.sh("echo again >{x}", "x=build/a.v"); a.exit != exitRetry || a.Code != job.Busy {
		t.Errorf("a call on the target of a quarantined job: %v", a)
	}
	unchanged("at a later start")
	if a := w.do("audit", "verify"); a.exit != exitOK {
		t.Errorf("audit verify: %v", a)
	}
}
