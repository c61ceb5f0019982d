package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup/internal/witness"
)

// Adopted is what recovery can say of a group of an earlier process: exactly one field is set.
type Adopted struct {
	Group    *Group   // reachable and the same: closed to starts; Kill and WaitEmpty follow
	Empty    Empty    // proven dead: gone, or the machine has booted since
	Confined Confined // cannot be seen from here: death is not claimed
}

// Leftovers lists the groups in our directory that this Parent has not made: those of an earlier process. Sorted by name.
// earlier is the absolute directory that an earlier process used, if it is known: a start in another scope has another one.
func (p *Parent) Leftovers(ctx context.Context, earlier string) ([]Ref, error) {
	refs, err := p.leftovers(ctx, p.caps.Dir)
	if err != nil || earlier == p.caps.Dir {
		return refs, err
	}
	more, err := p.leftovers(ctx, earlier)
	return append(refs, more...), err
}

func (p *Parent) leftovers(ctx context.Context, at string) ([]Ref, error) {
	at, below := strings.CutPrefix(at, p.site.Mount)
	if !below {
		return nil, nil
	}
	dir, err := openDir(fd(p.mount), relative(at))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("open group %q: %w", at, err)
	}
	defer closeFile(dir)
	_, parent, err := inode(dir)
	if err != nil {
		return nil, err
	}
	names, err := subdirs(fd(dir))
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	p.mu.Lock()
	ours := map[uint64]bool{}
	for g := range p.groups {
		ours[g.ref.Inode] = true
	}
	p.mu.Unlock()
	var refs []Ref
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(fd(dir), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) || err == nil && ours[st.Ino] {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("stat group %q: %w", name, err)
		}
		refs = append(refs, p.ref(parent, path.Join("/", at, name), st.Ino))
	}
	return refs, ctx.Err()
}

// Adopt finds out what became of a group of an earlier process. An error says that it is there but cannot be opened:
// then it is as good as unproven. A group with another inode is never touched.
func (p *Parent) Adopt(ctx context.Context, r Ref) (Adopted, error) {
	empty := func(how How) (Adopted, error) { return Adopted{Empty: witness.NewEmpty(r, time.Now(), how)}, nil }
	confined := func(why string) (Adopted, error) { return Adopted{Confined: witness.NewConfined(r, why)}, nil }
	switch {
	case r == (Ref{}):
		return Adopted{}, fmt.Errorf("adopt group: %w", fs.ErrInvalid)
	case r.BootID != p.bootID && r.Node == p.node:
		return empty(witness.Reboot)
	case r.BootID != p.bootID:
		return confined("another node")
	case r.Dev != p.dev:
		return confined("another cgroup file system")
	}
	up, err := openDir(fd(p.mount), relative(path.Dir(r.Path)))
	if errors.Is(err, fs.ErrNotExist) {
		return confined("its parent directory is not here")
	} else if err != nil {
		return Adopted{}, fmt.Errorf("adopt group %q: %w", r.Path, err)
	}
	defer closeFile(up)
	if _, ino, err := inode(up); err != nil || ino != r.Parent {
		return confined("another parent directory")
	}
	g, err := p.openGroup(up, r.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && g.dir == nil:
		g.closeFiles()
		if r.CgroupNS != p.ns {
			return confined("another cgroup namespace")
		}
		return empty(witness.Gone) // the kernel removes no group with a live task, and groups are never renamed
	case g.ref.Inode != 0 && g.ref.Inode != r.Inode:
		g.closeFiles()
		return confined("another group has its name")
	case err != nil:
		g.closeFiles()
		return Adopted{}, fmt.Errorf("adopt group %q: %w", r.Path, err)
	}
	g.ref.Node, g.ref.CgroupNS = r.Node, r.CgroupNS // the proof must be one for r
	g.closed = true
	p.note(g, time.Time{})
	return Adopted{Group: g}, ctx.Err()
}

// Look says of the groups in refs, and of those that Leftovers finds, what Adopt would, and touches nothing: no directory
// is made and nobody is killed. For a group with somebody in it, or that cannot be opened, it is the zero Adopted: what
// becomes of that one, only a kill can tell. Errors are those of Discover and of Leftovers.
func Look(ctx context.Context, o Options, earlier string, refs []Ref) (map[Ref]Adopted, error) {
	p := newParent(ctx, o)
	defer func() { _ = p.Close(ctx) }() // nothing was made
	var err error
	if p.site, err = Discover(o); err == nil {
		err = p.identify(ctx)
	}
	var left []Ref
	if err == nil {
		left, err = p.Leftovers(ctx, earlier)
	}
	if err != nil {
		return nil, fmt.Errorf("look at groups: %w", err)
	}
	all := map[Ref]Adopted{}
	for _, ref := range append(left, refs...) {
		a, _ := p.Adopt(ctx, ref) // an error leaves it zero, or the group, which is looked at
		if a.Group != nil {
			a.Empty, _, _ = a.Group.look() // unreadable is not empty
			a.Group.closeFiles()
			a.Group = nil
		}
		all[ref] = a
	}
	return all, nil
}

// Sweep takes an unproven group: it kills and looks again, with pauses of 1 s, doubling to 30 s, until the proof, for which
// proved is called once, or until Close. It returns at once.
func (p *Parent) Sweep(g *Group, proved func(Empty)) {
	count := func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unproven += n
	}
	count(1)
	p.insist(time.Second, func() bool {
		_, _ = g.Kill(p.ctx) // WaitEmpty says what matters
		ctx, cancel := context.WithTimeout(p.ctx, time.Second)
		defer cancel()
		empty, err := g.WaitEmpty(ctx)
		if err == nil {
			proved(empty)
		}
		return err == nil
	}, func() { count(-1) })
}

// Remove removes the group's directory, in the background: Linux 6.19 and later can sleep in rmdir uninterruptibly.
// It needs the proof; with another group's, or a zero one, it does nothing. Usage is read before.
func (g *Group) Remove(e Empty) {
	p := g.p
	g.mu.Lock()
	defer g.mu.Unlock()
	if !e.Proves(g.ref) || g.gone {
		return
	}
	g.gone, g.closed = true, true
	p.note(g, time.Now())
	p.insist(time.Millisecond, func() bool {
		p.slots <- struct{}{}
		defer func() { <-p.slots }()
		return g.rmdir() == nil
	}, func() {
		g.closeFiles()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.groups, g)
	})
}

// rmdir removes the directory, if it is still the one we made. It has no children: cgroup.max.descendants is 0.
func (g *Group) rmdir() error {
	name := path.Base(g.ref.Path)
	var st unix.Stat_t
	if err := unix.Fstatat(fd(g.up), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Ino != g.ref.Inode {
		return nil // gone; another one of that name is not ours
	}
	err := unix.Unlinkat(fd(g.up), name, unix.AT_REMOVEDIR)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
