package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind says what sort of place our own cgroup is.
type Kind string

// The kinds of place.
const (
	KindRoot      Kind = "root"      // the real root of the hierarchy: the host's; controllers are used as they are
	KindContainer Kind = "container" // root of a cgroup namespace: ours
	KindDelegated Kind = "delegated" // a directory that was delegated to us (systemd scope, configuration)
	KindForeign   Kind = "foreign"   // not writable: refused
)

// Site is the place where groups can be made. Paths are slash-separated and clean.
type Site struct {
	Kind  Kind   `json:"kind"`  // what the place is
	Mount string `json:"mount"` // absolute mount point of the cgroup2 file system
	Base  string `json:"base"`  // directory for our groups, relative to Mount, "/" or "/a/b"
	root  string // path of the mount's root as /proc/self/cgroup counts
}

const (
	supervisorName = "supervisor" // we live there after evacuation
	middlePrefix   = "eda-"       // + 12 hex digits: the directory of one workspace
)

// host is what discovery sees of the machine; tests replace it by a fixture tree.
type host struct {
	proc   string // "/proc"
	magic  func(path string) (int64, error)
	access func(path string) error // may we write?
}

func (o Options) hostOr() host {
	if o.host != nil {
		return *o.host
	}
	return host{"/proc", func(p string) (int64, error) {
		var st unix.Statfs_t
		err := unix.Statfs(p, &st)
		return st.Type, err
	}, func(p string) error { return unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, unix.AT_EACCESS) }}
}

type mount struct {
	root, point string
	rw          bool // both the mount and the superblock
}

// Discover finds the place for groups. It only looks: nothing is written. Errors are *UnavailableError.
// Source: proc_pid_mountinfo(5), cgroups(7).
func Discover(o Options) (Site, error) {
	h := o.hostOr()
	refuse := func(what, where, fix string) (Site, error) {
		return Site{}, &UnavailableError{[]Reason{{Check: "cgroup2", What: what, Where: where, Fix: fix}}}
	}
	info, err := os.ReadFile(h.proc + "/self/mountinfo")
	if err != nil {
		return refuse(err.Error(), "", "mount /proc")
	}
	mounts, v1 := cgroupMounts(string(info))
	if len(mounts) == 0 {
		if v1 {
			return refuse("cgroup v1 cannot prove death", "", "boot with systemd.unified_cgroup_hierarchy=1")
		}
		return refuse("no cgroup2 file system is mounted", h.proc+"/self/mountinfo", "mount -t cgroup2 none /sys/fs/cgroup")
	}
	text, err := os.ReadFile(h.proc + "/self/cgroup")
	if err != nil {
		return refuse(err.Error(), "", "mount /proc")
	}
	own, ok := ownPath(string(text))
	var m mount
	base := o.Parent
	switch {
	case base != "":
		if m, base, ok = holding(mounts, path.Clean(base), func(m mount) string { return m.point }); !ok {
			return refuse("cgroup_parent is not on a cgroup2 file system", o.Parent, "set cgroup_parent below a cgroup2 mount point")
		}
	case !ok:
		return refuse("this process is in no cgroup v2 group", h.proc+"/self/cgroup", "boot with systemd.unified_cgroup_hierarchy=1")
	case own == "/.." || strings.HasPrefix(own, "/../"):
		return refuse("our group is outside of our cgroup namespace", own, "start the process inside its container, or set cgroup_parent")
	case strings.HasSuffix(own, " (deleted)"):
		return refuse("our group was removed", own, "restart the process in a living group")
	default:
		if m, base, ok = holding(mounts, own, func(m mount) string { return m.root }); !ok {
			return refuse("no cgroup2 mount shows our group", own, "mount the cgroup2 file system of this cgroup namespace")
		}
		if up := path.Dir(base); path.Base(base) == supervisorName && h.access(path.Join(m.point, up, "cgroup.procs")) == nil {
			base = up // an evacuated sidecar, or a child of one
		}
	}
	if magic, err := h.magic(m.point); err != nil || magic != unix.CGROUP2_SUPER_MAGIC {
		return refuse(fmt.Sprintf("not a cgroup2 file system (magic %#x, %v)", magic, err), m.point, "unmount what covers the cgroup2 file system")
	}
	s := Site{Kind: KindDelegated, Mount: m.point, Base: base, root: m.root}
	dir := path.Join(m.point, base)
	if !m.rw {
		return refuse("cgroup2 is mounted read-only", m.point, writableFix(base))
	}
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if err := h.access(path.Join(dir, name)); err != nil {
			return refuse("group is not ours to write ("+err.Error()+")", path.Join(dir, name), writableFix(base))
		}
	}
	if base == "/" {
		s.Kind = KindContainer
		// Only the real root has no cgroup.events.
		if _, err := os.Lstat(path.Join(dir, "cgroup.events")); errors.Is(err, os.ErrNotExist) {
			s.Kind = KindRoot
		}
	}
	return s, nil
}

func writableFix(base string) string {
	if base == "/" {
		return "run as root; on a systemd machine as systemd-run --user --scope -p Delegate=yes eda-sidecar ...; in a pod give it writable cgroups (containerd 2.1 cgroup_writable)"
	}
	return "systemd-run --user --scope -p Delegate=yes eda-sidecar ..."
}

// cgroupMounts returns the cgroup2 mounts, and whether there are v1 ones.
func cgroupMounts(info string) (v2 []mount, v1 bool) {
	for line := range strings.Lines(info) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			continue
		}
		switch r[0] {
		case "cgroup2":
			rw := slices.Contains(strings.Split(l[5], ","), "rw") && slices.Contains(strings.Split(r[2], ","), "rw")
			v2 = append(v2, mount{unescape(l[3]), unescape(l[4]), rw})
		case "cgroup":
			v1 = true
		}
	}
	return v2, v1
}

// unescape undoes the octal escapes of mountinfo (space, tab, newline, backslash), which Go's literals have, too.
func unescape(s string) string {
	plain, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`)
	if err != nil {
		return s
	}
	return plain
}

// ownPath returns the cgroup v2 path in a /proc/PID/cgroup file.
func ownPath(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return p, true
		}
	}
	return "", false
}

// holding returns the mount whose key is the longest prefix of p, and p relative to it. A writable one wins a tie.
func holding(mounts []mount, p string, key func(mount) string) (best mount, rel string, ok bool) {
	for _, m := range mounts {
		k := key(m)
		rest, in := strings.CutPrefix(p, strings.TrimSuffix(k, "/"))
		if !in || (rest != "" && rest[0] != '/') {
			continue
		}
		if !ok || len(k) > len(key(best)) || (len(k) == len(key(best)) && m.rw && !best.rw) {
			best, rel, ok = m, path.Clean("/"+rest), true
		}
	}
	return best, rel, ok
}
