package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// fates is what is known of the groups of earlier processes.
type fates struct {
	mu       sync.Mutex
	empty    []cgroup.Empty
	confined []cgroup.Confined
	unproven map[cgroup.Ref]error
	asked    []cgroup.Ref // of a dry run: only a kill can tell
}

// adoptAll kills what earlier processes left, in parallel, and says of every group what is known.
func (s *Recovery) adoptAll(ctx context.Context, open []ledger.Job, earlier string, timeout time.Duration) (*fates, error) {
	refs, err := s.Groups.Leftovers(ctx, earlier)
	if err != nil {
		return nil, err
	}
	refs = append(refs, groupsOf(open)...)
	slices.SortFunc(refs, func(a, b cgroup.Ref) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	refs = slices.Compact(refs)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f := &fates{unproven: map[cgroup.Ref]error{}}
	var wg sync.WaitGroup
	for _, ref := range refs {
		wg.Go(func() { f.adopt(ctx, s.Groups, ref) })
	}
	wg.Wait()
	return f, nil
}

// killAll ends what earlier processes left, as well as it can. The groups stay for the start that can record their end.
func (s *Sidecar) killAll(ctx context.Context, earlier string, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	refs, _ := s.groups.Leftovers(ctx, earlier) // as above
	var wg sync.WaitGroup
	for _, ref := range refs {
		wg.Go(func() {
			if a, err := s.groups.Adopt(ctx, ref); err == nil && a.Group != nil {
				_, _ = a.Group.Kill(ctx)      // as above
				_, _ = a.Group.WaitEmpty(ctx) // as above
			}
		})
	}
	wg.Wait()
}

func groupsOf(open []ledger.Job) (refs []cgroup.Ref) {
	for _, row := range open {
		if j, err := txn.DecodeJournal(row.Doc); err == nil {
			refs = append(refs, j.Groups...)
		}
	}
	return refs
}

// lookAtAll is adoptAll that touches nothing. Where no group can be seen, nothing is known of any.
func lookAtAll(ctx context.Context, o cgroup.Options, open []ledger.Job, earlier string) *fates {
	f := &fates{}
	refs := groupsOf(open)
	all, err := cgroup.Look(ctx, o, earlier, refs)
	if err != nil {
		f.asked = refs
		return f
	}
	for ref, a := range all {
		switch {
		case a.Empty.Proves(ref):
			f.empty = append(f.empty, a.Empty)
		case a.Confined.Covers(ref):
			f.confined = append(f.confined, a.Confined)
		default:
			f.asked = append(f.asked, ref)
		}
	}
	return f
}

func (f *fates) adopt(ctx context.Context, groups EarlierGroups, ref cgroup.Ref) {
	a, err := groups.Adopt(ctx, ref)
	if err == nil && a.Group != nil {
		_, _ = a.Group.Kill(ctx) // a refused kill shows in the proof
		a.Empty, err = a.Group.WaitEmpty(ctx)
		if err == nil {
			a.Group.Remove(a.Empty)
		} else {
			groups.Sweep(a.Group, a.Group.Remove)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil:
		f.unproven[ref] = err
	case a.Empty.Proves(ref):
		f.empty = append(f.empty, a.Empty)
	default:
		f.confined = append(f.confined, a.Confined)
	}
}

// of sums up a job's groups: it is as its weakest one. One that only a kill can tell of counts as killed and empty.
func (f *fates) of(j *txn.Journal) (proof string, unproven error) {
	for _, ref := range j.Groups {
		if err := f.unproven[ref]; err != nil {
			return "", err
		}
		for _, e := range f.empty {
			if e.Proves(ref) && proof != "confined" {
				proof = string(e.How())
			}
		}
		if slices.Contains(f.asked, ref) && proof != "confined" {
			proof = "read"
		}
		for _, c := range f.confined {
			if c.Covers(ref) {
				proof = "confined"
			}
		}
	}
	return proof, nil
}
