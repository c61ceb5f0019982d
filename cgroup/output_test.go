package cgroup

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// feed copies data through a real pipe, in blocks of random sizes.
func feed(t *testing.T, c Command, data []byte) (Output, *output) {
	t.Helper()
	o, w, err := newOutput(c)
	ok(t, err)
	go o.copy()
	r := rand.New(rand.NewPCG(1, uint64(len(data))))
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1+r.IntN(50000))
		_, err := w.Write(rest[:n])
		ok(t, err)
		rest = rest[n:]
	}
	ok(t, w.Close())
	o.finish()
	return (&Process{out: o}).Output(), o
}

func TestOutputKeepsHeadAndTail(t *testing.T) {
	invariant(t)
	for _, size := range []int{0, 1, keepBytes - 1, keepBytes, keepBytes + 1, 2*keepBytes - 1, 2 * keepBytes, 2*keepBytes + 1, 3 * keepBytes, 1 << 20, 1<<20 + 777} {
		data := make([]byte, size)
		r := rand.New(rand.NewPCG(7, uint64(size)))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		ok(t, err)
		defer closeIt(t, log)
		got, _ := feed(t, Command{Log: log, LogCap: 100_000}, data)
		head := data[:min(size, keepBytes)]
		rest := data[len(head):]
		tail := rest[max(0, len(rest)-keepBytes):]
		if !bytes.Equal(got.Head, head) || !bytes.Equal(got.Tail, tail) || got.Bytes != int64(size) || got.Truncated != (size > 100_000) {
			t.Errorf("%d bytes: head %d, tail %d equal %v, bytes %d, truncated %v", size, len(got.Head), len(got.Tail), bytes.Equal(got.Tail, tail), got.Bytes, got.Truncated)
		}
		logged, err := os.ReadFile(log.Name())
		ok(t, err)
		if !bytes.Equal(logged, data[:min(size, 100_000)]) {
			t.Errorf("%d bytes: log has %d", size, len(logged))
		}
		if got, _ := feed(t, Command{}, data); got.Truncated != (size > 2*keepBytes) {
			t.Errorf("%d bytes without a log: truncated %v", size, got.Truncated)
		}
	}
}

func TestFullDiskIsNoHang(t *testing.T) {
	invariant(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	ok(t, err)
	defer closeIt(t, full)
	got, _ := feed(t, Command{Log: full}, make([]byte, 1<<20))
	if got.Bytes != 1<<20 || !got.Truncated {
		t.Errorf("%d bytes, truncated %v", got.Bytes, got.Truncated)
	}
}

// A daemon outside of the group may hold the pipe: after the proof there is a bound.
func TestDrainIsBounded(t *testing.T) {
	invariant(t)
	o, w, err := newOutput(Command{})
	ok(t, err)
	go o.copy()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for !isClosed(stop) {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return // the reader is gone
			}
		}
	}()
	until(t, "output", func() bool { return (&Process{out: o}).Output().Bytes > 0 })
	if isClosed(o.done) {
		t.Fatal("control: the writer lives, so a wait for the end of file would last")
	}
	o.finish()
	if !isClosed(o.done) {
		t.Error("the copier reads on")
	}
	close(stop)
	<-stopped
	closeFile(w)
	o, w, err = newOutput(Command{}) // a silent holder
	ok(t, err)
	go o.copy()
	o.finish()
	if !isClosed(o.done) {
		t.Error("the copier waits for a silent holder")
	}
	closeFile(w)
}

func TestLines(t *testing.T) {
	var got []string
	o := &output{c: Command{Line: func(b []byte) { got = append(got, string(b)) }}}
	at := time.Unix(0, 0)
	put := func(text string, later time.Duration) {
		at = at.Add(later)
		o.lines([]byte(text), at)
	}
	long := strings.Repeat("x", lineMax)
	put("a\nb\nc", time.Second)      // b: the last whole one
	put("d\n", 100*time.Millisecond) // too soon
	put("e\nf", time.Second)         // e
	put("g\n", time.Second)          // fg
	put(long, time.Second)
	put("\n", time.Second) // 4 KiB
	put(long, time.Second)
	put("y\n", time.Second) // one more: dropped
	put("h\n", time.Second)
	if want := []string{"b", "e", "fg", long, "h"}; strings.Join(got, ",") != strings.Join(want, ",") {
		t.Errorf("got %.40q, want %.40q", got, want)
	}
}

// A daemon that holds stdout does not delay the end; a flood does not grow this process.
func TestFloodAndHeldPipe(t *testing.T) {
	w := newWorld(t, Options{})
	g, p := w.start("daemon", "sleep")
	_, err := p.Wait(context.Background())
	ok(t, err)
	if isClosed(p.out.done) {
		t.Error("control: nobody holds the pipe, so a wait for the end of file would end")
	}
	w.prove(g)
	if !isClosed(p.out.done) {
		t.Error("the copier lives on after the proof")
	}
	const megabytes = 256
	log, err := os.Create(w.log)
	ok(t, err)
	defer closeIt(t, log)
	c := w.command("flood", strconv.Itoa(megabytes))
	c.Log, c.LogCap = log, 1<<20
	g = w.create()
	before := residentBytes(t)
	p, err = g.Start(context.Background(), c)
	ok(t, err)
	_, err = p.Wait(deadline(t, 20*time.Second))
	ok(t, err)
	w.prove(g)
	if growth := residentBytes(t) - before; growth > 8<<20 {
		t.Errorf("a flood of %d MiB grew this process by %d bytes", megabytes, growth)
	}
	info, err := log.Stat()
	ok(t, err)
	if out := p.Output(); out.Bytes != megabytes<<20 || !out.Truncated || info.Size() != 1<<20 {
		t.Errorf("%d bytes, truncated %v, log %d", out.Bytes, out.Truncated, info.Size())
	}
	before = residentBytes(t)
	keep := bytes.Repeat([]byte{1}, 32<<20)
	if growth := residentBytes(t) - before; growth <= 8<<20 || keep[0] != 1 {
		t.Errorf("control: keeping 32 MiB shows as %d bytes", growth)
	}
}

// residentBytes is the memory of this process that nothing can take away (RssAnon, bytes).
func residentBytes(t *testing.T) int64 {
	data, err := os.ReadFile("/proc/self/status")
	ok(t, err)
	_, rest, _ := strings.Cut(string(data), "RssAnon:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	ok(t, err)
	return n << 10
}
