package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fixture is a machine: /proc files and a cgroup tree below a temporary directory that stands for "MNT" in mountinfo.
type fixture struct {
	name      string
	mountinfo string
	cgroup    string
	dirs      []string // below MNT; those ending in "!" have cgroup.events
	deny      string   // path below MNT that cannot be written, with everything below
	magic     int64
	parent    string // Options.Parent, below MNT
	want      Site
	check     string // or the fix contains this
}

const hybridLines = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"

func TestDiscover(t *testing.T) {
	for _, f := range []fixture{
		{name: "root", mountinfo: "41 31 0:38 / MNT rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n", cgroup: "0::/\n", want: Site{Kind: KindRoot, Base: "/"}},
		{name: "hybrid", mountinfo: hybridLines + "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "9:name=systemd:/x\n0::/\n", want: Site{Kind: KindRoot, Base: "/"}},
		{name: "container", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/\n", dirs: []string{"/!"}, want: Site{Kind: KindContainer, Base: "/"}},
		{name: "container_without_namespace", mountinfo: "41 31 0:38 /docker/abc MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/docker/abc\n", dirs: []string{"/!"}, want: Site{Kind: KindContainer, Base: "/"}},
		{name: "evacuated", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/supervisor\n", dirs: []string{"/!", "/supervisor!"}, want: Site{Kind: KindContainer, Base: "/"}},
		{name: "delegated", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/user.slice/run-1.scope\n", dirs: []string{"/user.slice/run-1.scope!"}, deny: "/cgroup.procs", want: Site{Kind: KindDelegated, Base: "/user.slice/run-1.scope"}},
		{name: "longest_mount", mountinfo: "40 31 0:38 / /elsewhere rw - cgroup2 cgroup2 rw\n41 31 0:38 /a/b MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/a/b/c\n", dirs: []string{"/c!"}, want: Site{Kind: KindDelegated, Base: "/c"}},
		{name: "no_prefix_of_names", mountinfo: "41 31 0:38 /a/b MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/a/bc\n", check: "mount the cgroup2"},
		{name: "writable_wins", mountinfo: "40 31 0:38 / /elsewhere ro - cgroup2 cgroup2 rw\n41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/\n", dirs: []string{"/!"}, want: Site{Kind: KindContainer, Base: "/"}},
		{name: "space_in_path", mountinfo: `41 31 0:38 / MNT/with\040space rw - cgroup2 cgroup2 rw` + "\n", cgroup: "0::/\n", dirs: []string{"/with space"}, want: Site{Kind: KindRoot, Base: "/", Mount: "with space"}},
		{name: "configured", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/foreign\n", parent: "/pool", dirs: []string{"/pool!"}, want: Site{Kind: KindDelegated, Base: "/pool"}},
		{name: "configured_elsewhere", mountinfo: "41 31 0:38 / MNT/cg rw - cgroup2 cgroup2 rw\n", cgroup: "0::/\n", parent: "/pool", check: "cgroup_parent"},
		{name: "foreign", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/user.slice\n", dirs: []string{"/user.slice!"}, deny: "/user.slice", check: "systemd-run --user --scope"},
		{name: "container_not_writable", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/\n", dirs: []string{"/!"}, deny: "/", check: "writable cgroups"},
		{name: "read_only_mount", mountinfo: "41 31 0:38 / MNT ro - cgroup2 cgroup2 rw\n", cgroup: "0::/\n", check: "writable cgroups"},
		{name: "read_only_superblock", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 ro\n", cgroup: "0::/\n", check: "writable cgroups"},
		{name: "v1_only", mountinfo: hybridLines, cgroup: "9:name=systemd:/x\n", check: "systemd.unified_cgroup_hierarchy=1"},
		{name: "nothing", mountinfo: "1 0 0:1 / / rw - ext4 /dev/vda rw\n", cgroup: "0::/\n", check: "mount -t cgroup2"},
		{name: "outside_of_namespace", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/../x\n", check: "cgroup_parent"},
		{name: "deleted", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/x (deleted)\n", check: "restart"},
		{name: "not_in_v2", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "9:name=systemd:/x\n", check: "systemd.unified"},
		{name: "covered", mountinfo: "41 31 0:38 / MNT rw - cgroup2 cgroup2 rw\n", cgroup: "0::/\n", magic: unix.TMPFS_MAGIC, check: "unmount"},
	} {
		t.Run(f.name, func(t *testing.T) {
			proc, mnt := t.TempDir(), t.TempDir()
			ok(t, os.MkdirAll(filepath.Join(proc, "self"), 0o755))
			ok(t, os.WriteFile(filepath.Join(proc, "self", "mountinfo"), []byte(strings.ReplaceAll(f.mountinfo, "MNT", mnt)), 0o644))
			ok(t, os.WriteFile(filepath.Join(proc, "self", "cgroup"), []byte(f.cgroup), 0o644))
			for _, d := range append([]string{"/"}, f.dirs...) {
				dir, events := strings.CutSuffix(d, "!")
				ok(t, os.MkdirAll(filepath.Join(mnt, dir), 0o755))
				for _, name := range []string{"cgroup.procs", "cgroup.subtree_control"} {
					ok(t, os.WriteFile(filepath.Join(mnt, dir, name), nil, 0o644))
				}
				if events {
					ok(t, os.WriteFile(filepath.Join(mnt, dir, "cgroup.events"), []byte(clear), 0o644))
				}
			}
			h := &host{proc, func(string) (int64, error) {
				if f.magic != 0 {
					return f.magic, nil
				}
				return unix.CGROUP2_SUPER_MAGIC, nil
			}, func(path string) error {
				if f.deny != "" && within(path, filepath.Join(mnt, f.deny)) {
					return unix.EACCES
				}
				return unix.Access(path, unix.F_OK)
			}}
			o := Options{host: h}
			if f.parent != "" {
				o.Parent = mnt + f.parent
			}
			got, err := Discover(o)
			if f.check != "" {
				if u := new(UnavailableError); !errors.As(err, &u) || !strings.Contains(u.Reasons[0].Fix, f.check) || u.Reasons[0].What == "" {
					t.Errorf("%+v, %v; want fix %q", got, err, f.check)
				}
				return
			}
			f.want.Mount, got.root = filepath.Join(mnt, f.want.Mount), ""
			if err != nil || got != f.want {
				t.Errorf("%+v, %v; want %+v", got, err, f.want)
			}
		})
	}
}

// Groups in a delegated directory: other people's processes are not moved, ours are.
func TestEvacuate(t *testing.T) {
	invariant(t)
	mnt, err := Discover(Options{})
	ok(t, err)
	base := filepath.Join(mnt.Mount, mnt.Base, "evacuate-"+itoa(os.Getpid()))
	ok(t, os.Mkdir(base, 0o755))
	t.Cleanup(func() { until(t, "removal", func() bool { return unix.Rmdir(base) == nil }) })
	got := rehost(t, nil, "evacuate", base)
	t.Cleanup(func() {
		until(t, "removal", func() bool { return unix.Rmdir(filepath.Join(base, supervisorName)) == nil })
	})
	if got != "delegated left 0, supervisor 2, stranger refused" {
		t.Error(got)
	}
}

// The host's root group is left as it is; in a delegated one we make room for a controller and enable it, for real. Of those that
// are ours no host with cgroup v1 has one to give, so hugetlb stands for them.
func TestControllersAreEnabled(t *testing.T) {
	invariant(t)
	site, err := Discover(Options{})
	ok(t, err)
	root := filepath.Join(site.Mount, "cgroup.subtree_control")
	o := Options{Workspace: t.TempDir(), NoReaper: true, off: switches{controllers: []string{"hugetlb"}}}
	p, err := Open(t.Context(), o)
	ok(t, err)
	if c := p.caps; site.Kind == KindRoot && (len(c.Controllers) > 0 || c.MissingWhy == "") {
		t.Errorf("root: %+v", c)
	}
	ok(t, p.Close(t.Context()))
	before, err := os.ReadFile(root)
	ok(t, err)
	if !strings.Contains(string(before), "hugetlb") { // as the host's administrator
		ok(t, os.WriteFile(root, []byte("+hugetlb"), 0))
		t.Cleanup(func() {
			until(t, "controller off", func() bool { return os.WriteFile(root, []byte("-hugetlb"), 0) == nil })
		})
	}
	base := filepath.Join(site.Mount, site.Base, "enable-"+itoa(os.Getpid()))
	ok(t, os.Mkdir(base, 0o755))
	t.Cleanup(func() { until(t, "removal", func() bool { return unix.Rmdir(base) == nil }) })
	got := rehost(t, nil, "enable", base)
	t.Cleanup(func() {
		until(t, "removal", func() bool { return unix.Rmdir(filepath.Join(base, supervisorName)) == nil })
	})
	if got != "delegated enabled [hugetlb] missing [], own /supervisor, file true" {
		t.Error(got)
	}
}
