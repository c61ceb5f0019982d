package crash

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// state is what is left after a loss of power: a volume, a ledger, and what callers had been told.
type state struct {
	disk     *durabletest.Strict
	ledger   *book
	promises []answer
}

// A finding is a broken promise: a reason, and what was seen. These are the reasons.
const (
	missing    = "missing"     // a target that existed is not there
	zeroLength = "zero-length" // a target holds nothing
	partial    = "partial"     // a target holds what nobody put there
	mixed      = "mixed"       // some targets are as the ledger says, and some are not
	lost       = "lost"        // an acknowledged commit, or all that it published, is gone
	conflict   = "conflict"    // foreign bytes were found, where nobody but jobs writes
	leftOver   = "left over"
	unstable   = "unstable" // the second recovery did something
	broken     = "broken"   // recovery failed
)

// judge has the product recover a state, and returns every promise that is broken.
func judge(s state, wrap func(durable.FS, *book) durable.FS) (findings []string) {
	say := func(reason, format string, args ...any) {
		findings = append(findings, reason+": "+fmt.Sprintf(format, args...))
	}
	before, tree := s.disk.Files(side), map[string]string{}
	for name, content := range before { // what readers see before recovery
		if below, ok := strings.CutPrefix(name, "build/tree/"); ok {
			tree[below] = content
		} else if !strings.HasSuffix(name, "/") && content != old()[name] && !strings.HasPrefix(content, "new ") {
			say(map[bool]string{true: zeroLength, false: partial}[content == ""], "before recovery %s is %q", name, content)
		}
	}
	if !maps.Equal(tree, oldTree()) && !maps.Equal(tree, newTree()) {
		say(partial, "before recovery the tree holds %v", tree)
	}
	for name := range old() {
		if _, ok := before[name]; !ok && !strings.HasPrefix(name, "build/tree/") {
			say(missing, "before recovery %s", name)
		}
	}
	b := s.ledger.copy(s.disk)
	first, err := restart(s.disk, b, wrap)
	if err != nil {
		say(broken, "%v", err)
	}
	want, jobs := expected(b)
	got := s.disk.Files(side)
	for _, p := range s.promises {
		phase := b.jobs[p.Job].Phase
		if p.Code == job.OK && phase != txn.Committed || p.RolledBack && phase == txn.Committed {
			say(lost, "job %s was told %s, rolled back %t, and is %q", p.label, p.Code, p.RolledBack, phase)
		}
	}
	wrong := map[string]bool{}
	for name := range union(want, got) {
		w, wanted := want[name]
		if g, found := got[name]; wanted != found || w != g {
			wrong[name] = true
			reason := mixed
			if _, was := old()[name]; was && !found && wanted {
				reason = missing
			} else if found && g == "" && !strings.HasSuffix(name, "/") {
				reason = zeroLength
			}
			say(reason, "after recovery %s is %q, there %t; want %q, there %t", name, g, found, w, wanted)
		}
	}
	for _, j := range jobs {
		if !slices.ContainsFunc(j.Outputs, func(o txn.Output) bool { return o.New == nil || !wrong[o.Target] }) {
			say(lost, "nothing of committed job %s is there", j.RequestID)
		}
	}
	for _, finding := range sessions(b, jobs, want) {
		say(mixed, "%s", finding)
	}
	for _, r := range first {
		if r.Resolution == txn.Conflicted || r.Resolution == txn.Quarantined {
			say(conflict, "%+v", r)
		}
	}
	for name := range s.disk.Files("") {
		if dir, below, ok := strings.Cut(strings.TrimPrefix(name, side+"/"), "/"); ok && below != "" && slices.Contains([]string{"jobs", "trash", "conflicts"}, dir) {
			say(leftOver, "%s", name)
		}
	}
	sum, wrote := s.disk.Sum(), b.wrote
	again, err := restart(s.disk, b, wrap)
	if err != nil || len(again) > 0 || b.wrote != wrote || s.disk.Sum() != sum {
		say(unstable, "the second recovery: %+v, %v, %d rows", again, err, b.wrote-wrote)
	}
	return findings
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// restart recovers as a start does, after a loss of power: nobody is alive.
func restart(disk *durabletest.Strict, b *book, wrap func(durable.FS, *book) durable.FS) ([]sidecar.Recovered, error) {
	var volume durable.FS = disk
	if wrap != nil {
		volume = wrap(disk, b)
	}
	files, err := txn.Open(volume, root, txn.Options{ToolUID: -1, ToolGID: -1, BootID: "after"})
	if err != nil {
		return nil, err
	}
	r := sidecar.Recovery{Files: files, Root: root, Ledger: b, Groups: rebooted{}, Table: lock.New(lock.Options{})}
	if err := r.Run(context.Background(), "", time.Minute); err != nil {
		return nil, err
	}
	return r.Recovered, files.Close()
}

// rebooted are groups of before the loss of power.
type rebooted struct{}

func (rebooted) Leftovers(context.Context, string) ([]cgroup.Ref, error) { return nil, nil }
func (rebooted) Sweep(*cgroup.Group, func(cgroup.Empty))                 {}
func (rebooted) Adopt(_ context.Context, ref cgroup.Ref) (cgroup.Adopted, error) {
	return cgroup.Adopted{Empty: cgrouptest.Empty(ref)}, nil
}

// expected is what the workspace has to hold by what the ledger says, and the jobs that it calls committed, in their order.
func expected(b *book) (want map[string]string, jobs []*txn.Journal) {
	want = old()
	for _, id := range slices.Sorted(maps.Keys(b.jobs)) { // of the same targets, the later one has the later id
		j, err := txn.DecodeJournal(b.jobs[id].Doc)
		if err != nil || b.jobs[id].Phase != txn.Committed {
			continue
		}
		jobs = append(jobs, j)
		for i, o := range j.Outputs {
			if o.New == nil { // optional, and not seen
				continue
			}
			for dir := path.Dir(o.Target); dir != "."; dir = path.Dir(dir) {
				want[dir+"/"] = ""
			}
			if o.Kind == txn.File {
				want[o.Target] = content(j.RequestID, i)
				continue
			}
			maps.DeleteFunc(want, func(name, _ string) bool { return strings.HasPrefix(name, o.Target+"/") })
			for name, text := range newTree() {
				want[o.Target+"/"+name] = text
			}
		}
	}
	return want, jobs
}

// sessions says where a session is not what the committed jobs have made it.
func sessions(b *book, jobs []*txn.Journal, files map[string]string) (findings []string) {
	generations := map[string]int64{}
	for _, j := range jobs {
		generations[j.Session]++
		for i, o := range j.Outputs {
			if o.New == nil {
				continue
			}
			sum := sha256.Sum256([]byte(content(j.RequestID, i)))
			if got := b.sessions[j.Session].State.Artifacts[o.Target]; files[o.Target] == content(j.RequestID, i) && got.SHA256 != hex.EncodeToString(sum[:]) {
				findings = append(findings, fmt.Sprintf("session %q knows %+v of %s", j.Session, got, o.Target))
			}
		}
	}
	for id := range union(b.sessions, nil) {
		generations[id] += 0
	}
	for id, n := range generations {
		if b.sessions[id].Generation != n {
			findings = append(findings, fmt.Sprintf("session %q has generation %d after %d commits", id, b.sessions[id].Generation, n))
		}
	}
	return findings
}

// sweep loses power in all ways that a log allows, and returns the number of different states and the findings, by state.
// It begins at the step first, and ends at the first finding with a reason, if one is given.
func sweep(t testing.TB, vol *durabletest.Strict, log []durabletest.Step, first int, known map[key]bool, until string, wrap func(durable.FS, *book) durable.FS) (states int, findings []string) {
	var now *book
	var next []*book
	var promises []answer
	at := -1
	for i, disk := range vol.Losses(log, first, quiet) {
		for ; at < i; at++ {
			now, next, promises = told(log, at+1, now, next, promises)
		}
		for _, b := range append([]*book{now}, next...) {
			k := key{disk.Sum(), b, len(promises)}
			if known[k] {
				continue
			}
			known[k] = true
			if states++; states > 2_000_000 {
				t.Fatal("more than 2,000,000 states")
			}
			found := judge(state{disk.Copy(), b, promises}, wrap)
			if len(found) > 0 {
				findings = append(findings, fmt.Sprintf("after step %d, %s: %s", i, describe(log[i]), strings.Join(found, "; ")))
			}
			if until != "" && says(strings.Join(found, "; "), until) {
				return states, findings
			}
		}
	}
	return states, findings
}

// key is a state, for finding out whether it was judged before.
type key struct {
	disk     uint64
	ledger   *book
	promises int
}

// told goes on from step to step: what the ledger holds for sure, what it may hold instead, and what callers know.
func told(log []durabletest.Step, i int, now *book, next []*book, promises []answer) (*book, []*book, []answer) {
	switch m := log[i].Mark.(type) {
	case begun:
		for _, later := range log[i:] {
			if d, ok := later.Mark.(done); ok {
				return now, append(slices.Clip(next), d.book), promises
			} else if d, ok := later.Mark.(maybe); ok {
				return now, append(slices.Clip(next), d.book), promises
			}
		}
	case done:
		return m.book, nil, promises
	case answer:
		return now, next, append(slices.Clip(promises), m)
	}
	return now, next, promises
}

// quiet are changes that nobody looks at, but to delete them: recovery.json is for a human eye, the others are the tool's, and
// what lies in the trash is emptied at every start.
func quiet(s durabletest.Step) bool {
	return slices.Contains([]string{"work", "tmp", "home", "log", "recovery.json"}, s.Name) || strings.HasPrefix(string(s.Site), "txn.remove.")
}

func describe(s durabletest.Step) string {
	if s.Mark != nil {
		return fmt.Sprintf("%T", s.Mark)
	}
	return fmt.Sprintf("%s %s %q", s.Method, s.Site, s.Name)
}
