package txn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
)

// noLease is an FS on which every lease is granted: the control of the writer check.
type noLease struct{ durable.FS }

func (noLease) Lease(durable.Site, durable.Handle) error { return nil }

// oneName is the control of the link count.
func oneName(l *lab) {
	l.w.fs = statAt{l.w.fs, "txn.inspect.fstat", func(_ durable.Name, st *durable.Stat) { st.Nlink = 1 }}
}

// TestInspectRefuses: what a tool can leave at a declared output and must not be published. Each row names its control,
// where the protection is a switch.
func TestInspectRefuses(t *testing.T) {
	file := Spec{Name: "o", Target: "o.json", Kind: File}
	tree := Spec{Name: "o", Target: "o", Kind: Tree}
	for _, tt := range []struct {
		name    string
		spec    Spec
		tool    func(t *testing.T, out string)
		quotas  Quotas
		want    error
		control func(l *lab)
	}{
		{"whole", file, func(t *testing.T, out string) { put(t, out, "x") }, Quotas{}, nil, nil},
		{"missing", file, func(t *testing.T, out string) {}, Quotas{}, ErrOutput, func(l *lab) { l.a.specs[0].Optional = true }},
		{"empty", file, func(t *testing.T, out string) { put(t, out, "") }, Quotas{}, ErrOutput, func(l *lab) { l.a.specs[0].AllowEmpty = true }},
		{"under-another-name", file, func(t *testing.T, out string) { put(t, out+".tmp", "x") }, Quotas{}, ErrOutput, nil},
		{"directory", file, func(t *testing.T, out string) { put(t, out+"/x", "x") }, Quotas{}, ErrOutput, nil},
		{"fifo", file, func(t *testing.T, out string) { must(t, unix.Mkfifo(out, 0o600)) }, Quotas{}, ErrOutput, nil},
		{"link", file, func(t *testing.T, out string) { must(t, os.Symlink("/etc/passwd", out)) }, Quotas{}, ErrOutput, nil},
		{"link-to-own-file", file, func(t *testing.T, out string) {
			put(t, out+".real", "x")
			must(t, os.Symlink(filepath.Base(out)+".real", out))
		}, Quotas{}, ErrOutput, nil},
		{"second-name", file, func(t *testing.T, out string) {
			put(t, out, "x")
			must(t, os.Link(out, out+".again"))
		}, Quotas{}, ErrOutput, oneName},
		{"open-for-writing-outside", file, func(t *testing.T, out string) {
			put(t, out, "x")
			f, err := os.OpenFile(out, os.O_WRONLY, 0)
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
		}, Quotas{}, ErrOutput, func(l *lab) { l.w.fs = noLease{l.w.fs} }},
		{"too-large", file, func(t *testing.T, out string) { put(t, out, strings.Repeat("x", 101)) }, Quotas{OutputBytes: 100}, ErrQuota, nil},
		{"too-large-sparse", file, func(t *testing.T, out string) {
			put(t, out, "x")
			must(t, os.Truncate(out, 1<<40))
		}, Quotas{OutputBytes: 1 << 30}, ErrQuota, nil},
		{"job-too-large", file, func(t *testing.T, out string) {
			put(t, out, "x")
			put(t, filepath.Join(filepath.Dir(out), "../work/dump"), strings.Repeat("x", 100_000))
		}, Quotas{JobBytes: 90_000}, ErrQuota, nil},
		{"too-many-entries", file, func(t *testing.T, out string) {
			put(t, out, "x")
			for i := range 30 {
				put(t, filepath.Join(filepath.Dir(out), fmt.Sprintf("../tmp/%d", i)), "")
			}
		}, Quotas{Entries: 20}, ErrQuota, nil},
		{"too-deep", tree, func(t *testing.T, out string) { put(t, out+strings.Repeat("/d", 70)+"/x", "x") }, Quotas{}, ErrQuota, nil},
		{"tree", tree, func(t *testing.T, out string) { put(t, out+"/a/b", "x") }, Quotas{}, nil, nil},
		{"tree-empty", tree, func(t *testing.T, out string) { must(t, os.Mkdir(out, 0o755)) }, Quotas{}, ErrOutput, func(l *lab) { l.a.specs[0].AllowEmpty = true }},
		{"tree-is-a-file", tree, func(t *testing.T, out string) { put(t, out, "x") }, Quotas{}, ErrOutput, nil},
		{"tree-with-fifo", tree, func(t *testing.T, out string) {
			put(t, out+"/a", "x")
			must(t, unix.Mkfifo(out+"/fifo", 0o600))
		}, Quotas{}, ErrOutput, nil},
		{"tree-with-link", tree, func(t *testing.T, out string) {
			put(t, out+"/a", "x")
			must(t, os.Symlink("a", out+"/l"))
		}, Quotas{}, ErrOutput, nil},
		{"tree-two-names-inside", tree, func(t *testing.T, out string) {
			put(t, out+"/a", "x")
			must(t, os.Link(out+"/a", out+"/b"))
		}, Quotas{}, nil, nil},
		{"tree-name-outside", tree, func(t *testing.T, out string) {
			put(t, out+"/a", "x")
			must(t, os.Link(out+"/a", out+"/../again"))
		}, Quotas{}, ErrOutput, oneName},
		{"tree-open-for-writing", tree, func(t *testing.T, out string) {
			put(t, out+"/a", "x")
			f, err := os.OpenFile(out+"/a", os.O_WRONLY, 0)
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
		}, Quotas{}, ErrOutput, func(l *lab) { l.w.fs = noLease{l.w.fs} }},
		{"tree-too-large", tree, func(t *testing.T, out string) {
			put(t, out+"/a", strings.Repeat("x", 60))
			put(t, out+"/b", strings.Repeat("x", 60))
		}, Quotas{OutputBytes: 5000}, ErrQuota, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inspect := func(control bool) error {
				c := durabletest.NewCounting(durable.OS())
				l := newLab(t, c, Options{})
				must(t, l.admit(tt.spec))
				must(t, l.begin(BeginOptions{}))
				tt.tool(t, filepath.Join(l.tx.Work(), l.j.Outputs[0].StagedArg()))
				if control {
					tt.control(l)
				}
				_, err := l.tx.Inspect(l.proofs, tt.quotas)
				if n := c.Count("ReadAt", ""); errors.Is(tt.want, ErrQuota) && n > 4 {
					t.Errorf("%d reads before a quota was noticed", n)
				}
				if err != nil && !errors.Is(err, unix.ENOTEMPTY) {
					must(t, l.tx.Discard(l.proofs))
					l.clean()
				}
				return err
			}
			if err := inspect(false); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("Inspect = %v, want %v", err, tt.want)
			}
			if tt.control != nil {
				if err := inspect(true); err != nil {
					t.Errorf("control: Inspect without the protection = %v, want success", err)
				}
			}
		})
	}
}

// TestInspectFinds: digests, absent outputs, undeclared files (100, then a count), collected files, known products.
func TestInspectFinds(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	put(t, l.path("rtl/x.v"), "x")
	must(t, l.admit(
		Spec{Name: "a", Target: "a.json", Kind: File},
		Spec{Name: "wave", Target: "wave.vcd", Kind: File},
		Spec{Name: "opt", Target: "opt", Kind: File, Optional: true},
	))
	must(t, l.begin(BeginOptions{
		Links: []string{"rtl"}, Files: map[string][]byte{"_run.ys": []byte("x")}, Products: []string{"a.out"}, Collect: map[int]string{1: "dump.vcd"},
	}))
	put(t, filepath.Join(l.tx.Work(), l.j.Outputs[0].StagedArg()), "abc")
	put(t, filepath.Join(l.tx.Work(), "dump.vcd"), "wave")
	put(t, filepath.Join(l.tx.Work(), "a.out"), "product")
	for i := range 150 {
		put(t, filepath.Join(l.tx.Work(), fmt.Sprintf("more/%03d", i)), "")
	}
	in, err := l.tx.Inspect(l.proofs, Quotas{})
	must(t, err)
	want := []Inspected{
		{Name: "a", Index: 0, Bytes: 3, SHA256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{Name: "wave", Index: 1, Bytes: 4, SHA256: in.Outputs[1].SHA256},
		{Name: "opt", Index: 2, Absent: true},
	}
	if diff := cmp.Diff(want, in.Outputs); diff != "" {
		t.Errorf("outputs (-want +got):\n%s", diff)
	}
	if len(in.Undeclared) != 100 || in.UndeclaredTotal != 150 || in.Undeclared[0] != "work/more/000" {
		t.Errorf("undeclared: %d of %d, first %q", len(in.Undeclared), in.UndeclaredTotal, in.Undeclared[0])
	}
	staged, err := l.tx.StagedFS(l.proofs)
	must(t, err)
	for name, want := range map[string]string{"s0/out.json": "abc", "s1/out.vcd": "wave", "work/a.out": "product"} {
		if b, err := fs.ReadFile(staged, name); err != nil || string(b) != want {
			t.Errorf("staged %s = %q, %v; want %q", name, b, err, want)
		}
	}
	must(t, unix.Mkfifo(filepath.Join(l.tx.Work(), "fifo"), 0o600))
	for _, name := range []string{"work/rtl/x.v", "work/rtl", "work/fifo", "../owner.lock", "s9/x", "work/a.out/x"} {
		if b, err := fs.ReadFile(staged, name); err == nil {
			t.Errorf("staged %s = %q, want an error", name, b)
		}
	}
	if entries, err := fs.ReadDir(staged, "work/more"); err != nil || len(entries) != 150 {
		t.Errorf("staged work/more has %d entries, %v", len(entries), err)
	}
}

// TestAttributes: a published file has the tool's bits less the umask, nothing that runs as somebody else, and the ACL
// of a new file in the target's directory.
func TestAttributes(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	must(t, os.Mkdir(l.path("shared"), 0o755))
	must(t, os.Chown(l.path("shared"), 0, 4321))
	must(t, os.Chmod(l.path("shared"), 0o775|fs.ModeSetgid))
	must(t, l.admit(Spec{Target: "shared/x", Kind: File}))
	must(t, l.begin(BeginOptions{}))
	out := filepath.Join(l.tx.Work(), l.j.Outputs[0].StagedArg())
	put(t, out, "x")
	must(t, os.Chmod(out, 0o777|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // cap_net_bind_service+ep, v2
	must(t, unix.Setxattr(out, "security.capability", capability, 0))
	must(t, l.inspect())
	must(t, l.seal())
	must(t, l.tx.Exchange(l.proofs))
	fi, err := os.Stat(l.path("shared/x"))
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(l.path("shared/x"), &st))
	if fi.Mode() != 0o755 || st.Gid != 4321 {
		t.Errorf("published with mode %v, gid %d; want 0755, 4321 (directory is setgid)", fi.Mode(), st.Gid)
	}
	if n, err := unix.Getxattr(l.path("shared/x"), "security.capability", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("published with a capability of %d bytes (%v)", n, err)
	}
}

// TestInheritsACL: a published file has what a new one in the target's directory would have; a rename alone keeps
// staging's.
func TestInheritsACL(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	must(t, os.Mkdir(l.path("shared"), 0o755))
	acl := []byte{2, 0, 0, 0} // version, then tag, permissions, id of each entry (linux/posix_acl_xattr.h)
	for _, e := range [][3]uint32{{1, 7, 1<<32 - 1}, {2, 6, 1111}, {4, 5, 1<<32 - 1}, {16, 7, 1<<32 - 1}, {32, 0, 1<<32 - 1}} {
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
		acl = binary.LittleEndian.AppendUint32(acl, e[2])
	}
	must(t, unix.Setxattr(l.path("shared"), "system.posix_acl_default", acl, 0))
	must(t, l.admit(Spec{Name: "x", Target: "shared/x", Kind: File}, Spec{Name: "plain", Target: "plain", Kind: File}))
	must(t, l.begin(BeginOptions{}))
	l.tool()
	must(t, l.inspect())
	must(t, l.seal())
	must(t, l.tx.Exchange(l.proofs))
	buf := make([]byte, 100)
	n, err := unix.Getxattr(l.path("shared/x"), "system.posix_acl_access", buf)
	if err != nil || !bytes.Contains(buf[:max(n, 0)], binary.LittleEndian.AppendUint32(nil, 1111)) {
		t.Errorf("access ACL of the published file = %x, %v; want an entry for uid 1111", buf[:max(n, 0)], err)
	}
	if _, err := unix.Getxattr(l.path("plain"), "system.posix_acl_access", buf); !errors.Is(err, unix.ENODATA) {
		t.Errorf("a directory without a default ACL gave one: %v", err)
	}
}

func TestSample(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	must(t, l.admit(Spec{Target: "x", Kind: File}))
	must(t, l.begin(BeginOptions{}))
	must(t, l.w.Sample(l.j, Quotas{JobBytes: 1 << 20}))
	put(t, filepath.Join(l.tx.Work(), "dump"), strings.Repeat("x", 2<<20))
	if err := l.w.Sample(l.j, Quotas{JobBytes: 1 << 20}); !errors.Is(err, ErrQuota) {
		t.Errorf("Sample = %v, want ErrQuota", err)
	}
	// What vanishes while it looks is no error.
	put(t, filepath.Join(l.tx.Work(), "a/gone"), "x")
	l.w.fs = vanishing{l.w.fs, filepath.Join(l.tx.Work(), "a")}
	must(t, l.w.Sample(l.j, Quotas{}))
	l.w.fs = l.fs
	if _, err := os.Stat(filepath.Join(l.tx.Work(), "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory did not vanish: %v", err)
	}
	if names, err := l.w.Orphans(); err != nil || !slices.Equal(names, []string{job}) {
		t.Errorf("Orphans = %q, %v", names, err)
	}
}

// vanishing removes dir when somebody is about to open it.
type vanishing struct {
	durable.FS
	dir string
}

func (v vanishing) OpenDir(s durable.Site, at durable.Name) (durable.Handle, error) {
	if at.Name == filepath.Base(v.dir) {
		if err := os.RemoveAll(v.dir); err != nil {
			return nil, err
		}
	}
	return v.FS.OpenDir(s, at)
}
