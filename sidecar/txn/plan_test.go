package txn

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

// The objects of the identity table: one old file, one new, their edited forms and a stranger.
var objects = map[class]FileID{
	isAbsent:  {},
	isOld:     {Exists: true, Type: "file", Ino: 1, Btime: 10, Size: 100, MtimeNS: 1000},
	oldEdited: {Exists: true, Type: "file", Ino: 1, Btime: 10, Size: 101, MtimeNS: 5000},
	isNew:     {Exists: true, Type: "file", Ino: 2, Btime: 20, Size: 200, MtimeNS: 2000},
	newTorn:   {Exists: true, Type: "file", Ino: 2, Btime: 20, Size: 0, MtimeNS: 2000},
	newEdited: {Exists: true, Type: "file", Ino: 2, Btime: 20, Size: 201, MtimeNS: 5000},
	isForeign: {Exists: true, Type: "file", Ino: 2, Btime: 21, Size: 200, MtimeNS: 2000}, // a new inode's number, reused
}

var classes = []class{isAbsent, isOld, oldEdited, isNew, newTorn, newEdited, isForeign}

var home = DirID{Ino: 7, Btime: 70}

func tableJournal(m Method) *Journal {
	old, fresh := objects[isOld], objects[isNew]
	if m == NoReplace {
		old = FileID{}
	}
	return &Journal{Version: 1, Job: "j", Outputs: []Output{{Target: "d/t", Kind: File, Staged: staged("j", 0), Parent: home, Method: m, Old: old, New: &fresh}}}
}

// row is one line of the table of 20-transaction section 6: the first that matches decides; none: quarantine.
type row struct {
	method   Method // empty: both
	target   []class
	staged   []class
	boot     string // "", same, other
	kept     bool   // only if conflicts/ holds an object of the output
	do       []ActionKind
	conflict bool
}

var (
	anything = classes
	before   = []class{isOld}
	edited   = []class{newEdited, newTorn}
)

// identityTable has the rows of the design, in three places finer: where staged holds the new inode nothing of ours is at
// the target, so that whatever is there stays (the design quarantines some of these); a displaced original that was
// written meanwhile goes back with what was written; data that is not later than the journal is called torn only after a
// reboot.
var identityTable = []row{
	{target: anything, staged: []class{isNew}},
	{target: anything, staged: []class{newTorn}, boot: "other"},
	{target: anything, staged: edited, do: []ActionKind{ActKeepForeign}, conflict: true},
	{target: []class{isAbsent, isOld, oldEdited, isForeign}, staged: []class{isAbsent}, kept: true, conflict: true},
	{target: []class{isNew}, staged: []class{isOld}, method: Exchange, do: []ActionKind{ActExchange}},
	{target: []class{isNew}, staged: []class{oldEdited}, method: Exchange, do: []ActionKind{ActExchange}, conflict: true},
	{target: edited, staged: []class{isOld, oldEdited}, method: Exchange, do: []ActionKind{ActExchange, ActKeepForeign}, conflict: true},
	{target: []class{isForeign}, staged: []class{isOld, oldEdited}, method: Exchange, do: []ActionKind{ActKeepForeign}, conflict: true},
	{target: []class{isAbsent}, staged: []class{isOld, oldEdited}, method: Exchange, do: []ActionKind{ActRestore}},
	{target: []class{isNew}, staged: []class{isAbsent}, method: NoReplace, do: []ActionKind{ActRenameNew}},
	{target: edited, staged: []class{isAbsent}, method: NoReplace, do: []ActionKind{ActRenameNew, ActKeepForeign}, conflict: true},
	{target: []class{isAbsent}, staged: []class{isAbsent}, method: NoReplace},
	{target: []class{isForeign}, staged: []class{isAbsent}, method: NoReplace, conflict: true},
	{target: before, staged: []class{isAbsent}, method: Exchange},
	{target: []class{oldEdited}, staged: []class{isAbsent}, method: Exchange, conflict: true},
}

// expect looks a case up. lost: the parent is not the journaled one.
func expect(m Method, s Seen, t, b class, lost bool) (do []ActionKind, conflict, quarantine bool) {
	wasBefore := t == isOld || t == isAbsent && m == NoReplace
	o := s.Outputs[0]
	switch {
	case s.Job == Gone:
		return nil, o.Kept, !wasBefore || lost
	case o.Target.sameInode(o.Staged) && t == isNew && m == NoReplace:
		return []ActionKind{ActRenameNew}, false, false
	case o.Target.sameInode(o.Staged):
		return nil, false, true
	}
	for i, r := range identityTable {
		boot := r.boot == "" || (r.boot == "same") == s.SameBoot
		method := r.method == "" || r.method == m
		if boot && method && (!r.kept || o.Kept) && slices.Contains(r.target, t) && slices.Contains(r.staged, b) {
			if i >= 4 && lost { // from there on something must be done, or believed, at the target
				return nil, false, true
			}
			nothing := len(r.do) == 0 || i < 4
			return r.do, r.conflict || nothing && (o.Kept || !wasBefore), false
		}
	}
	return nil, false, true
}

// play does to seen what Apply does to files.
func play(seen Seen, d Decision) Seen {
	seen.Outputs, seen.Dirs = slices.Clone(seen.Outputs), slices.Clone(seen.Dirs)
	for _, a := range d.Actions {
		switch a.Kind {
		case ActRemoveDir:
			seen.Dirs[a.Index] = SeenDir{}
		case ActExchange:
			o := &seen.Outputs[a.Index]
			o.Target, o.Staged = o.Staged, o.Target
		case ActRenameNew:
			o := &seen.Outputs[a.Index]
			o.Staged, o.Target = o.Target, FileID{}
		case ActRestore:
			o := &seen.Outputs[a.Index]
			o.Target, o.Staged = o.Staged, FileID{}
		case ActKeepForeign:
			o := &seen.Outputs[a.Index]
			o.Staged, o.Kept = FileID{}, true
		case ActRetire, ActQuarantine:
		}
	}
	return seen
}

// eachCase calls f with every combination of what can be seen of one output.
func eachCase(f func(m Method, seen Seen, t, b class, lost bool)) int {
	n := 0
	for _, m := range []Method{Exchange, NoReplace} {
		for _, t := range classes {
			for _, b := range classes {
				if m == NoReplace && (t == isOld || t == oldEdited || b == isOld || b == oldEdited) {
					continue // there was none
				}
				for bits := range 8 {
					for _, parent := range []SeenOutput{{Parent: home}, {Parent: DirID{Ino: 8, Btime: 70}}, {Parent: DirID{Ino: 7, Btime: 71}}, {ParentGone: true}} {
						seen := Seen{Job: InJobs, SameBoot: bits&1 != 0}
						if bits&2 != 0 {
							seen.Job = Gone
						}
						s := parent
						s.Kept, s.Target, s.Staged = bits&4 != 0, objects[t], objects[b]
						if seen.Job == Gone && b != isAbsent || parent.ParentGone && t != isAbsent {
							continue
						}
						seen.Outputs = []SeenOutput{s}
						f(m, seen, t, b, s.Parent != home)
						n++
					}
				}
			}
		}
	}
	return n
}

// trustPhase is the control of Plan's comparisons: what the journal meant to publish is taken for published.
func trustPhase(j *Journal, _ Seen, _ Fate) Decision {
	d := Decision{Resolution: RolledBackAll}
	for i, o := range slices.Backward(j.Outputs) {
		if o.New != nil {
			d.Actions = append(d.Actions, Action{Kind: map[Method]ActionKind{Exchange: ActExchange, NoReplace: ActRenameNew}[o.Method], Index: i})
		}
	}
	d.Actions = append(d.Actions, Action{Kind: ActRetire, Index: -1})
	return d
}

// trustBackups is the control of Retire's comparison.
func trustBackups(*Journal, Seen, Fate) Decision {
	return Decision{Resolution: RolledForward, Actions: []Action{{Kind: ActRetire, Index: -1}}}
}

// TestPlanTable holds Plan against the identity table in every combination, and asserts what no table may break: nothing
// but ours goes to the trash, an original that can be put back is back, and a plan of the applied plan only retires.
func TestPlanTable(t *testing.T) {
	bad := 0
	check := func(plan func(*Journal, Seen, Fate) Decision, report func(string, ...any)) int {
		return eachCase(func(m Method, seen Seen, tc, bc class, lost bool) {
			j := tableJournal(m)
			do, conflict, quarantined := expect(m, seen, tc, bc, lost)
			d := plan(j, seen, FateOpen)
			var got []ActionKind
			for _, a := range d.Actions {
				if a.Kind != ActRetire && a.Kind != ActQuarantine {
					got = append(got, a.Kind)
				}
			}
			want := RolledBackAll
			switch {
			case quarantined:
				want = Quarantined
			case conflict:
				want = Conflicted
			}
			if d.Resolution != want || !slices.Equal(got, do) {
				report("%s: target %s, staged %s, seen %+v: %s %v, want %s %v", m, tc, bc, seen, d.Resolution, got, want, do)
			}
			if d.Resolution == Quarantined {
				if !d.Only(ActQuarantine) {
					report("a quarantine does something: %+v", d)
				}
				return
			}
			after := play(seen, d).Outputs[0]
			if k := classify(after.Staged, j.Outputs[0].Old, j.Outputs[0].New); k != isAbsent && k != isNew && (k != newTorn || seen.SameBoot) {
				report("%s: target %s, staged %s, seen %+v: %s would go to the trash", m, tc, bc, seen, k)
			}
			if k := classify(after.Target, j.Outputs[0].Old, j.Outputs[0].New); k == isNew || k == newTorn || k == newEdited {
				report("%s: target %s, staged %s, seen %+v: our file stays at the target", m, tc, bc, seen)
			}
			if again := plan(j, play(seen, d), FateOpen); !again.Only(ActRetire) {
				report("%s: target %s, staged %s, seen %+v: then %+v, want only %s", m, tc, bc, seen, again, ActRetire)
			}
		})
	}
	n := check(Plan, t.Errorf)
	if n < 600 {
		t.Errorf("%d rows, want at least 600", n)
	}
	t.Logf("rows=%d", n)
	check(trustPhase, func(string, ...any) { bad++ })
	if bad == 0 {
		t.Error("control: a plan that trusts the phase passes the table")
	}
	// Every row of the table must have been met.
	for i, r := range identityTable {
		used := false
		eachCase(func(m Method, seen Seen, tc, bc class, lost bool) {
			used = used || (r.method == "" || r.method == m) && slices.Contains(r.target, tc) && slices.Contains(r.staged, bc)
		})
		if !used {
			t.Errorf("row %d is never met", i)
		}
	}
}

// TestPlanFates: a final row touches no target; an operator's decision touches nothing; a backup that is not the
// journaled one is kept. Control: without the comparison it is deleted.
func TestPlanFates(t *testing.T) {
	for _, fate := range []Fate{FateCommitted, FateRolledBack} {
		eachCase(func(m Method, seen Seen, tc, bc class, _ bool) {
			j := tableJournal(m)
			d := Plan(j, seen, fate)
			ours := bc == isAbsent || bc == isOld && fate == FateCommitted ||
				fate == FateRolledBack && (bc == isNew || bc == newTorn && !seen.SameBoot)
			keeps := slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Kind == ActKeepForeign })
			if keeps == ours {
				t.Errorf("%s: staged %s, seen %+v: keeps %v", fate, bc, seen, keeps)
			}
			for _, a := range d.Actions {
				if a.Kind != ActKeepForeign && a.Kind != ActRetire {
					t.Errorf("%s: target %s, staged %s: %s", fate, tc, bc, a.Kind)
				}
			}
			if again := Plan(j, play(seen, d), fate); !again.Only(ActRetire) {
				t.Errorf("%s: again %+v", fate, again)
			}
		})
	}
	j := tableJournal(Exchange)
	seen := Seen{Job: Decided, Outputs: []SeenOutput{{Target: objects[isNew], Parent: home}}}
	if d := Plan(j, seen, FateOpen); d.Resolution != ByOperator || len(d.Actions) != 0 {
		t.Errorf("operator's decision: %+v", d)
	}
	seen = Seen{Job: InJobs, Outputs: []SeenOutput{{Target: objects[isNew], Staged: objects[oldEdited], Parent: home}}}
	if d := trustBackups(j, seen, FateCommitted); !d.Only(ActRetire) {
		t.Errorf("control: without the comparison %+v, want only %s", d, ActRetire)
	}
}

// TestPlanManyOutputs: in reverse; one unknown output quarantines the whole job.
func TestPlanManyOutputs(t *testing.T) {
	fresh := objects[isNew]
	j := &Journal{Version: 1, Job: "j"}
	for i, target := range []string{"d/e/x", "d/y", "f/z"} {
		j.Outputs = append(j.Outputs, Output{Index: i, Target: target, Staged: staged("j", i), Kind: File, Method: NoReplace, New: &fresh})
	}
	published := func() Seen {
		o := SeenOutput{Target: fresh, Parent: home}
		return Seen{Job: InJobs, Outputs: []SeenOutput{o, o, o}}
	}
	kinds := func(d Decision) (s []string) {
		for _, a := range d.Actions {
			s = append(s, string(a.Kind))
		}
		return s
	}
	for _, tt := range []struct {
		name string
		edit func(*Seen)
		want []string
	}{
		{"all", func(*Seen) {}, []string{"rename_new", "rename_new", "rename_new", "retire"}},
		{"target-stays", func(s *Seen) { s.Outputs[1].Target = objects[isForeign] }, []string{"rename_new", "rename_new", "retire"}},
		{"one-unknown", func(s *Seen) { s.Outputs[0].Staged = objects[isForeign] }, []string{"quarantine"}},
		{"not-of-this-journal", func(s *Seen) { s.Outputs = s.Outputs[:2] }, []string{"quarantine"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen := published()
			tt.edit(&seen)
			d := Plan(j, seen, FateOpen)
			if got := kinds(d); !slices.Equal(got, tt.want) {
				t.Errorf("Plan = %q, want %q", got, tt.want)
			}
			if !reflect.DeepEqual(d, Plan(j, seen, FateOpen)) {
				t.Error("Plan is not a function")
			}
		})
	}
}

// TestPlanBeforePublication: a job that has published nothing undoes nothing.
func TestPlanBeforePublication(t *testing.T) {
	j := &Journal{Version: 1, Job: "j", CreatedDirs: []CreatedDir{{Path: "d"}}, Outputs: []Output{{Target: "d/x", Kind: File, Method: NoReplace}}}
	d := Plan(j, Seen{Job: InJobs, Outputs: []SeenOutput{{}}}, FateOpen)
	if d.Resolution != Discarded || !d.Only(ActRetire) {
		t.Errorf("Plan = %+v, want %s and only %s", d, Discarded, ActRetire)
	}
}

// FuzzJournal: a document that decodes stays inside its places; its plan does not panic, deletes nothing that it does not
// recognise, and what it plans leads to nothing but ActRetire.
func FuzzJournal(f *testing.F) {
	seed := func(j *Journal, seen Seen) {
		doc, err := j.Encode()
		must(f, err)
		s, err := json.Marshal(seen)
		must(f, err)
		f.Add(doc, s)
	}
	eachCase(func(m Method, seen Seen, tc, bc class, _ bool) {
		if seen.SameBoot && (tc == isNew || bc == isNew) {
			seed(tableJournal(m), seen)
		}
	})
	f.Add([]byte(`{"version":1,"job":"x","outputs":[{"target":"../x"}]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, doc, look []byte) {
		j, err := DecodeJournal(doc)
		if err != nil {
			return
		}
		for i, o := range j.Outputs {
			if p, why := parsePath(o.Target); why != "" || p[0] == reserved || o.Staged != staged(j.Job, i) {
				t.Fatalf("accepted output %+v", o)
			}
		}
		var seen Seen
		if json.Unmarshal(look, &seen) != nil || len(seen.Outputs) > maxTargets {
			return
		}
		for i := range seen.Outputs { // what Observe says by construction
			s := &seen.Outputs[i]
			if seen.Job != InJobs {
				s.Staged = FileID{}
			}
		}
		for _, fate := range []Fate{FateOpen, FateCommitted, FateRolledBack} {
			d := Plan(j, seen, fate)
			if d.Resolution == Quarantined {
				continue
			}
			after := play(seen, d)
			for i, o := range j.Outputs {
				if o.New == nil {
					continue
				}
				k := classify(after.Outputs[i].Staged, o.Old, o.New)
				if k == isForeign || k == newEdited || k == oldEdited {
					t.Errorf("%s: %s would be deleted: %+v", fate, k, after.Outputs[i])
				}
			}
			if !Plan(j, after, fate).Only(ActRetire) {
				t.Errorf("%s: then %+v", fate, Plan(j, after, fate))
			}
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	j := &Journal{Version: 1, Job: "j"}
	seen := Seen{Job: InJobs}
	for i := range 10 {
		o := tableJournal(Exchange).Outputs[0]
		o.Index = i
		j.Outputs = append(j.Outputs, o)
		seen.Outputs = append(seen.Outputs, SeenOutput{Target: objects[isNew], Staged: objects[isOld], Parent: home})
	}
	for b.Loop() {
		Plan(j, seen, FateOpen)
	}
}

// TestPlanOfDirectories: a created directory goes if it is the one that was made and nobody has put anything into it; the
// plan of what is then there does nothing to it.
func TestPlanOfDirectories(t *testing.T) {
	made := DirID{Ino: 9, Btime: 90}
	fresh := FileID{Exists: true, Type: "file", Ino: 5, Btime: 50, Size: 1, MtimeNS: 1}
	for _, c := range []struct {
		name string
		id   DirID
		seen SeenDir
		fate Fate
		want bool
	}{
		{"ours", made, SeenDir{DirID: made}, FateOpen, true},
		{"others-inside", made, SeenDir{DirID: made, Others: true}, FateOpen, false},
		{"of-somebody-else", made, SeenDir{DirID: DirID{Ino: 9, Btime: 91}}, FateOpen, false},
		{"not-there", made, SeenDir{}, FateOpen, false},
		{"never-made", DirID{}, SeenDir{}, FateOpen, false},
		{"committed", made, SeenDir{DirID: made}, FateCommitted, false},
	} {
		j := &Journal{Version: 1, Job: "j", CreatedDirs: []CreatedDir{{Path: "d", DirID: c.id}}, Outputs: []Output{{Target: "d/x", Kind: File, Method: NoReplace, New: &fresh}}}
		seen := Seen{Job: InJobs, Outputs: []SeenOutput{{Target: fresh}}, Dirs: []SeenDir{c.seen}}
		d := Plan(j, seen, c.fate)
		if got := slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Kind == ActRemoveDir }); got != c.want {
			t.Errorf("%s: %+v", c.name, d)
		}
		if d := Plan(j, play(seen, d), c.fate); !d.Only(ActRetire) {
			t.Errorf("%s: after it %+v", c.name, d)
		}
	}
}
