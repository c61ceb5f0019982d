package crash

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
)

// TestLosses says what may be left of a directory and of a file in it that is written once.
func TestLosses(t *testing.T) {
	type volume struct {
		*durabletest.Strict
		root, dir, file durable.Handle
	}
	at := func(dir durable.Handle, name string) durable.Name { return durable.Name{Dir: dir, Name: name} }
	for _, tt := range []struct {
		name string
		ops  func(v *volume) error
		want string
	}{
		{"nothing_synced", func(*volume) error { return nil }, "d/ | d/,d/f= | d/,d/f=1 | nothing"},
		{"file_synced", func(v *volume) error { return v.Sync("", v.file) }, "d/ | d/,d/f=1 | nothing"},
		{"directory_synced", func(v *volume) error { return v.Sync("", v.dir) }, "d/,d/f= | d/,d/f=1 | nothing"},
		{"parent_synced", func(v *volume) error { return v.Sync("", v.root) }, "d/ | d/,d/f= | d/,d/f=1"},
		{"all_synced", func(v *volume) error { return errors.Join(v.Sync("", v.file), v.Sync("", v.dir), v.Sync("", v.root)) }, "d/,d/f=1"},
		{"moved_and_synced_at_one_end", func(v *volume) error {
			return errors.Join(v.Sync("", v.file), v.Move("", at(v.dir, "f"), at(v.root, "g")), v.Sync("", v.root))
		}, "d/,g=1"},
		{"moved_without_its_name", func(v *volume) error {
			return errors.Join(v.Sync("", v.file), v.Sync("", v.root), v.Move("", at(v.dir, "f"), at(v.root, "g")))
		}, "d/ | d/,d/f=1 | d/,g=1"},
		{"exchanged_without_its_name", func(v *volume) error {
			h, err := v.Create("", at(v.root, "t"), 0o644)
			return errors.Join(err, v.WriteAt("", h, []byte("2"), 0), v.Sync("", h), v.Sync("", v.file), v.Sync("", v.root), v.Exchange("", at(v.dir, "f"), at(v.root, "t")))
		}, "d/,d/f=1,t=2 | d/,d/f=2 | d/,d/f=2,t=1 | d/,t=2"},
	} {
		v := &volume{Strict: durabletest.NewStrict()}
		write(t, v.Strict, "d/f", "1")
		var err error
		v.root, err = v.OpenRoot("", "")
		ok(t, err)
		v.dir, err = v.OpenDir("", at(v.root, "d"))
		ok(t, err)
		v.file, err = v.OpenFile("", at(v.dir, "f"))
		ok(t, err)
		ok(t, tt.ops(v))
		v.Mark("the end")
		left := map[string]bool{}
		log := v.Log()
		for _, disk := range v.Losses(log, len(log)-1, func(durabletest.Step) bool { return false }) {
			left[list(disk)] = true
		}
		if got := strings.Join(slices.Sorted(maps.Keys(left)), " | "); got != tt.want {
			t.Errorf("%s: got  %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func list(v *durabletest.Strict) string {
	var all []string
	files := v.Files("")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, "/") {
			name += "=" + files[name]
		}
		all = append(all, name)
	}
	return cmp.Or(strings.Join(all, ","), "nothing")
}

// TestModelIsAVolume does the same random operations on the model and on a real volume: the same answers, the same content.
func TestModelIsAVolume(t *testing.T) {
	const seed, rounds, ops = 1, 100, 60
	random := rand.New(rand.NewPCG(seed, seed))
	outcomes := map[string]bool{}
	for range rounds {
		dir := t.TempDir()
		model, volume := durabletest.NewStrict(), durable.OS()
		var trace []string
		for range ops {
			method, i, j := random.IntN(9), random.IntN(6), random.IntN(6)
			got, want := operate(model, dir, method, i, j), operate(volume, dir, method, i, j)
			trace = append(trace, want)
			if outcomes[want] = true; got != want {
				t.Fatalf("%q: the model says %s", trace, got)
			}
		}
	}
	t.Logf("NOTE seed %d: %d sequences of %d operations, %d outcomes", seed, rounds, ops, len(outcomes))
	if len(outcomes) < 80 {
		t.Errorf("%d outcomes are too few", len(outcomes))
	}
}

// operate does one operation on two of six names in two directories, and says how it went and what the names then are.
func operate(fs durable.FS, dir string, method, i, j int) string {
	root, err := fs.OpenRoot("", dir)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = root.Close() }() // opened for reading
	at := func(i int) durable.Name {
		return durable.Name{Dir: root, Name: []string{"a", "b", "d", "e", "f", "g"}[i]}
	}
	if i > 2 && j > 2 { // below d, if it is a directory
		if sub, err := fs.OpenDir("", at(2)); err == nil {
			defer func() { _ = sub.Close() }() // opened for reading
			root = sub
		}
	}
	x, y := at(i), at(j)
	var what string
	switch method {
	case 0, 1:
		what = "create"
		var h durable.Handle
		if h, err = fs.Create("", x, 0o644); err == nil {
			err = errors.Join(fs.WriteAt("", h, []byte("text"), int64(j)), h.Close())
		}
	case 2:
		what, err = "mkdir", fs.Mkdir("", x, 0o755)
	case 3:
		what, err = "exchange", fs.Exchange("", x, y)
	case 4:
		what, err = "move", fs.Move("", x, y)
	case 5:
		what, err = "unlink", fs.Unlink("", x)
	case 6:
		what, err = "rmdir", fs.Rmdir("", x)
	case 7:
		what, err = "symlink", fs.Symlink("", x, "a")
	case 8:
		what = "open"
		var h durable.Handle
		if h, err = fs.OpenFile("", durable.Name{Dir: root, Name: x.Name + "/" + y.Name}); err == nil {
			err = h.Close()
		}
	}
	var errno unix.Errno
	errors.As(err, &errno)
	var text strings.Builder
	fmt.Fprint(&text, what, " ", int(errno))
	for _, name := range []durable.Name{x, y} {
		st, err := fs.Stat("", name)
		fmt.Fprint(&text, " ", st.Type, " ", errors.Is(err, unix.ENOENT))
		if h, err := fs.OpenFile("", name); err == nil {
			buf := make([]byte, 16)
			if st.Type == durable.Regular {
				n, err := fs.ReadAt("", h, buf, 0)
				fmt.Fprintf(&text, " %d %q %v", st.Size, buf[:n], err)
			}
			_ = h.Close() // opened for reading
		}
	}
	names, err := fs.List("", root, 0)
	fmt.Fprint(&text, names, err)
	return text.String()
}
