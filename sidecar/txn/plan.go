package txn

import (
	"fmt"
	"slices"
)

// Fate is what the ledger's phase says of a job: nothing else decides.
type Fate string

// The fates.
const (
	FateOpen       Fate = "open"
	FateCommitted  Fate = "committed"
	FateRolledBack Fate = "rolled_back"
)

// Place is where a job's directory is.
type Place string

// The places. Decided: an operator moved it to conflicts/<job>, or made that directory, and so decided a quarantine.
const (
	InJobs  Place = "jobs"
	Gone    Place = "gone"
	Decided Place = "conflicts"
)

// Seen is what a look at the volume found of one job.
type Seen struct {
	Job      Place
	SameBoot bool // since the journal was written: no power was lost
	Outputs  []SeenOutput
	Dirs     []SeenDir // at the places of the journal's created directories
}

// SeenDir is what is at the place of a created directory. Zero: nothing, or no directory.
type SeenDir struct {
	DirID
	Others bool // it holds something that is not the job's
}

// SeenOutput is what is at an output's two names.
type SeenOutput struct {
	ParentGone bool  // no path of plain directories leads to the target's parent any more
	Parent     DirID // zero if it is gone
	Target     FileID
	Staged     FileID
	Kept       bool // conflicts/<job>/<i> holds an object of this output
}

// ActionKind is one thing that recovery or an undo does.
type ActionKind string

// The actions.
const (
	ActExchange    ActionKind = "exchange"     // swap target and staged back
	ActRenameNew   ActionKind = "rename_new"   // a published new name back to staged
	ActRestore     ActionKind = "restore"      // the displaced original back to a name that is free
	ActKeepForeign ActionKind = "keep_foreign" // staged to conflicts/<job>/<i>
	ActRemoveDir   ActionKind = "remove_dir"   // a directory that was made for a target, if nobody has put anything into it
	ActRetire      ActionKind = "retire"       // the job directory to the trash; by Retire or Trash, once the row is final
	ActQuarantine  ActionKind = "quarantine"   // touch nothing, hold the keys, ask an operator
)

// Action is one step of a Decision.
type Action struct {
	Kind  ActionKind `json:"kind"`
	Index int        `json:"index"` // of the output, of remove_dir in created_dirs; -1 for actions on the job directory
	Why   string     `json:"why,omitempty"`
}

// Foreign returns the actions that keep somebody else's bytes.
func (d Decision) Foreign() []Action {
	return slices.DeleteFunc(slices.Clone(d.Actions), func(a Action) bool { return a.Kind != ActKeepForeign })
}

// Resolution is how a job ends, as the recovered event says it.
type Resolution string

// The resolutions.
const (
	Discarded     Resolution = "discarded"      // nothing had been published
	RolledBackAll Resolution = "rolled_back"    // every target is as before
	Conflicted    Resolution = "conflict"       // somebody else's bytes stayed in place or went to conflicts/
	RolledForward Resolution = "rolled_forward" // the commit was durable
	Quarantined   Resolution = "quarantine"     // touch nothing
	ByOperator    Resolution = "quarantined"    // an operator has decided a quarantine
)

// Decision is what Plan wants done, in order.
type Decision struct {
	Resolution Resolution
	Actions    []Action
}

// Only reports whether nothing is left to do but k.
func (d Decision) Only(k ActionKind) bool {
	return !slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Kind != k })
}

// class is what an object is, compared with the journal by identity.
type class string

const (
	isAbsent  class = "absent"
	isOld     class = "old"
	oldEdited class = "old edited"
	isNew     class = "new"
	newTorn   class = "new, other content, not later" // after power loss: its data did not become durable
	newEdited class = "new edited"                    // somebody wrote through a target's descriptor
	isForeign class = "foreign"
)

func classify(seen, old FileID, fresh *FileID) class {
	switch {
	case !seen.Exists:
		return isAbsent
	case fresh != nil && seen.sameInode(*fresh) && seen.same(*fresh):
		return isNew
	case fresh != nil && seen.sameInode(*fresh) && seen.MtimeNS > fresh.MtimeNS:
		return newEdited
	case fresh != nil && seen.sameInode(*fresh):
		return newTorn
	case seen.sameInode(old) && seen.same(old):
		return isOld
	case seen.sameInode(old):
		return oldEdited
	}
	return isForeign
}

// Plan decides what becomes of one job's files, by identity. It is pure: no I/O, no clock, no map order. fate comes from
// the ledger's phase alone. Plan of what Apply leaves yields only ActRetire, or ActQuarantine again.
func Plan(j *Journal, seen Seen, fate Fate) Decision {
	if len(seen.Outputs) != len(j.Outputs) {
		return quarantine(-1, "internal error: what was seen is not of this journal")
	}
	switch fate {
	case FateCommitted:
		return planFinal(j, seen, RolledForward)
	case FateRolledBack:
		return planFinal(j, seen, RolledBackAll)
	case FateOpen:
	}
	if seen.Job == Decided {
		return Decision{Resolution: ByOperator}
	}
	d := Decision{Resolution: Discarded}
	for i, o := range slices.Backward(j.Outputs) {
		if o.New == nil {
			continue
		}
		step := undo(o, seen.Outputs[i], seen)
		if step.quarantine {
			return quarantine(i, step.why)
		}
		for _, k := range step.do {
			d.Actions = append(d.Actions, Action{Kind: k, Index: i, Why: step.why})
		}
		switch {
		case step.conflict:
			d.Resolution = Conflicted
		case d.Resolution == Discarded:
			d.Resolution = RolledBackAll
		}
	}
	for i, made := range slices.Backward(j.CreatedDirs) {
		if made.DirID != (DirID{}) && i < len(seen.Dirs) && seen.Dirs[i].DirID == made.DirID && !seen.Dirs[i].Others {
			d.Actions = append(d.Actions, Action{Kind: ActRemoveDir, Index: i, Why: "made for a target"})
		}
	}
	if seen.Job == InJobs {
		d.Actions = append(d.Actions, Action{Kind: ActRetire, Index: -1})
	}
	return d
}

func quarantine(i int, why string) Decision {
	return Decision{Resolution: Quarantined, Actions: []Action{{Kind: ActQuarantine, Index: i, Why: why}}}
}

// verdict is one row of the identity table (20-transaction section 6).
type verdict struct {
	do                   []ActionKind
	conflict, quarantine bool
	why                  string
}

// undo is the identity table for an open job.
func undo(o Output, s SeenOutput, seen Seen) verdict {
	t, b := classify(s.Target, o.Old, o.New), classify(s.Staged, o.Old, o.New)
	before := t == isOld || t == isAbsent && !o.Old.Exists // the target is as admission found it
	leave := verdict{conflict: !before || s.Kept, why: "not published, or undone"}
	unknown := verdict{quarantine: true, why: fmt.Sprintf("target is %s, staged is %s, by %s", t, b, o.Method)}
	linked := s.Target.sameInode(s.Staged)
	parentLost := o.Parent != (DirID{}) && (s.ParentGone || s.Parent != o.Parent)
	switch {
	case seen.Job == Gone:
		if before && !parentLost {
			return leave
		}
		return verdict{quarantine: true, why: "the job directory is gone and target is " + string(t)}
	case linked && o.Method == NoReplace && t == isNew:
		return verdict{do: []ActionKind{ActRenameNew}, why: "published, under both names"}
	case linked:
		return unknown
	// Staged holds the new inode: it is not at the target, whatever is there is not ours.
	case b == isNew:
		return leave
	case b == newTorn && !seen.SameBoot:
		leave.why = "power was lost before the staged data was durable"
		return leave
	case b == newEdited, b == newTorn:
		leave.do, leave.conflict, leave.why = []ActionKind{ActKeepForeign}, true, "written through the target, then swapped back"
		return leave
	// What staged held is in conflicts/, which is the last thing that is done for an output.
	case b == isAbsent && s.Kept && t != isNew && t != newTorn && t != newEdited:
		return leave
	case parentLost:
		return verdict{quarantine: true, why: "the target's directory was moved or replaced"}
	case b == isOld || b == oldEdited:
		return undoBackup(o, t, b, unknown)
	case b == isAbsent && o.Method == NoReplace:
		switch t {
		case isNew:
			return verdict{do: []ActionKind{ActRenameNew}, why: "published new name"}
		case newEdited, newTorn:
			return verdict{do: []ActionKind{ActRenameNew, ActKeepForeign}, conflict: true, why: "published, then edited in place"}
		case isAbsent, isForeign, isOld, oldEdited:
			return leave
		}
	case b == isAbsent && (before || t == oldEdited):
		return leave
	}
	return unknown
}

// undoBackup is the part of the table where the displaced original lies at the staged name.
func undoBackup(o Output, t, b class, unknown verdict) verdict {
	if o.Method != Exchange {
		return unknown
	}
	switch t {
	case isNew:
		return verdict{do: []ActionKind{ActExchange}, conflict: b == oldEdited, why: "published"}
	case newEdited, newTorn:
		return verdict{do: []ActionKind{ActExchange, ActKeepForeign}, conflict: true, why: "published, then edited in place"}
	case isForeign:
		return verdict{do: []ActionKind{ActKeepForeign}, conflict: true, why: "somebody replaced our file"}
	case isAbsent:
		return verdict{do: []ActionKind{ActRestore}, why: "somebody deleted our file"}
	case isOld, oldEdited:
	}
	return unknown
}

// planFinal is for a row that is final: targets are not touched, as later writers are legal. A backup, or an undone new
// file, is ours to delete only if it is still what the journal says.
func planFinal(j *Journal, seen Seen, r Resolution) Decision {
	d := Decision{Resolution: r}
	for i, o := range j.Outputs {
		b := classify(seen.Outputs[i].Staged, o.Old, o.New)
		ours := b == isAbsent || b == isOld && r == RolledForward || b == isNew && r == RolledBackAll || b == newTorn && r == RolledBackAll && !seen.SameBoot
		if o.New != nil && !ours {
			d.Actions = append(d.Actions, Action{Kind: ActKeepForeign, Index: i, Why: "backup is " + string(b)})
		}
	}
	if seen.Job == InJobs {
		d.Actions = append(d.Actions, Action{Kind: ActRetire, Index: -1})
	}
	return d
}
