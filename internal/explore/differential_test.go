//go:build edamodel

package explore_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
	"github.com/eda-sidecar/eda-sidecar/internal/msync"
)

// program is a random one: for each thread its operations, over two of each primitive.
type program [][]instruction

type instruction struct {
	op string
	on int
	v  uint32
}

// lost is the smallest program of which classic backtracking with sleep sets loses a final state (3 of 4 are seen).
var lost = program{{{"store", 0, 1}}, {{"store", 1, 2}, {"load", 0, 0}}, {{"load", 0, 0}}}

// compose makes a program of the seed. A thread may keep a lock, and wait for what nobody closes; it closes nothing twice.
func compose(seed uint64) program {
	rng := rand.New(rand.NewPCG(seed, 0))
	p := make(program, 2+rng.IntN(2), 3)
	closed := [2]bool{}
	var sorts []string // few in a program, so that its threads meet
	for _, s := range []string{"atomic", "mutex", "channel", "choose"} {
		if rng.IntN(5) < 3 {
			sorts = append(sorts, s)
		}
	}
	if len(sorts) == 0 || rng.IntN(3) == 0 { // three readers and writers are what wrong backtracking loses
		sorts, p = []string{"memory"}, p[:3]
	}
	for i := range p {
		var held []int
		for size := []int{2: 5, 3: 3}[len(p)]; len(p[i]) < size; {
			on := rng.IntN(2)
			in := instruction{on: on, v: rng.Uint32N(3)}
			switch sorts[rng.IntN(len(sorts))] {
			case "memory":
				in.op = []string{"load", "store"}[rng.IntN(2)]
			case "atomic":
				in.op = []string{"load", "load", "store", "store", "swap", "cas", "add"}[rng.IntN(7)]
			case "mutex":
				switch k := slices.Index(held, on); {
				case k >= 0 && rng.IntN(4) > 0:
					in.op, held = "unlock", slices.Delete(held, k, k+1)
				case k >= 0:
					continue
				case rng.IntN(3) == 0:
					in.op = "trylock"
				default:
					in.op, held = "lock", append(held, on)
				}
			case "channel":
				switch k := rng.IntN(3); {
				case k == 0 && !closed[on]:
					in.op, closed[on] = "close", true
				case k == 1:
					in.op = "recv"
				default:
					in.op = "first"
				}
			case "choose":
				in.op = "choose"
			}
			p[i] = append(p[i], in)
		}
	}
	return p
}

// world is what a program works on.
type world struct {
	word  msync.Uint32
	big   msync.Int64
	flag  msync.Bool
	at    msync.Pointer[int]
	lock  [2]msync.Mutex
	ch    [2]chan struct{}
	seen  [3][]uint32 // results, by thread
	cells [3]int
}

// run does one thread of a program. What it has seen goes into what it stores.
func (w *world) run(m *explore.M, id int, program []instruction) {
	var last uint32
	for _, in := range program {
		switch in.op {
		case "load":
			last = w.load(in.on)
		case "store":
			w.store(in.on, last+in.v)
		case "swap":
			if in.on == 0 {
				last = w.word.Swap(last + in.v)
			} else if w.flag.Swap(in.v > 0) {
				last++
			}
		case "cas":
			if in.on == 0 && w.word.CompareAndSwap(in.v, last+1) || in.on == 1 && w.at.CompareAndSwap(nil, &w.cells[id]) {
				last += 4
			}
		case "add":
			if in.on == 0 {
				last = w.word.Add(in.v)
			} else {
				last = uint32(w.big.Add(int64(in.v)))
			}
		case "lock":
			w.lock[in.on].Lock()
		case "unlock":
			w.lock[in.on].Unlock()
		case "trylock":
			if w.lock[in.on].TryLock() {
				last += 8
				w.lock[in.on].Unlock()
			}
		case "close":
			msync.Close(w.ch[in.on])
		case "recv":
			msync.Recv(w.ch[in.on])
		case "first":
			last += 16 * uint32(1+msync.First(w.ch[in.on], w.ch[1-in.on]))
		case "choose":
			last += 64 * uint32(m.Choose(2))
		}
		w.seen[id] = append(w.seen[id], last)
	}
}

func (w *world) load(on int) uint32 {
	if on == 0 {
		return w.word.Load()
	}
	return uint32(w.big.Load())
}

func (w *world) store(on int, v uint32) {
	if on == 0 {
		w.word.Store(v)
		return
	}
	w.big.Store(int64(v))
}

func (w *world) String() string {
	at := -1
	for i := range w.cells {
		if w.at.Load() == &w.cells[i] {
			at = i
		}
	}
	return fmt.Sprint(w.seen, w.word.Load(), w.big.Load(), w.flag.Load(), at)
}

// states returns the final states of p, and whether one of them is a deadlock.
func states(c explore.Config, p program) (all []string, deadlock bool, r explore.Result) {
	set := map[string]bool{}
	var w *world
	r = explore.Explore(c.AtDeadlock(func() { set["deadlock "+w.String()], deadlock = true, true }), func(m *explore.M) {
		w = &world{ch: [2]chan struct{}{make(chan struct{}), make(chan struct{})}}
		mine := w
		for i := range p {
			m.Go(fmt.Sprint("t", i), func() { mine.run(m, i, p[i]) })
		}
		m.Finally(func() { set[mine.String()] = true })
	})
	return slices.Sorted(maps.Keys(set)), deadlock, r
}

// TestDifferential holds the three modes against each other on random programs, and then every part of the explorer against
// the same programs with that part away.
func TestDifferential(t *testing.T) {
	const wanted, limit = 200, 4_000
	var programs []program
	var truth [][]string
	deadlocks, total := 0, [3]int{} // schedules, by mode
	for seed := uint64(0); len(programs) < wanted; seed++ {
		p := compose(seed)
		if seed == 0 {
			p = lost
		}
		dfs, deadlock, r := states(explore.Config{Mode: explore.DFS, MaxSchedules: limit, Twice: 1}, p)
		if !r.Complete {
			if r.Failure.Kind != explore.Limit {
				t.Fatalf("program %d %v: %s", seed, p, r.Failure)
			}
			continue // the next one is smaller
		}
		total[explore.DFS] += r.Schedules
		for _, mode := range []explore.Mode{explore.Sleep, explore.DPOR} {
			got, _, r := states(explore.Config{Mode: mode, Twice: 1}, p)
			total[mode] += r.Schedules + r.Pruned
			if !r.Complete || !slices.Equal(got, dfs) {
				t.Fatalf("program %d %v under %s: %d final states, want %d; %v", seed, p, mode, len(got), len(dfs), r.Failure)
			}
		}
		programs, truth = append(programs, p), append(truth, dfs)
		if deadlock {
			deadlocks++
		}
	}
	var controls []string
	for _, part := range []string{"classic", "invisible", "intention", "independent", "unfiltered", "blocked"} {
		restore := explore.Break(part)
		wrong := 0
		for i, p := range programs {
			if got, _, r := states(explore.Config{Twice: 1}, p); !r.Complete || !slices.Equal(got, truth[i]) {
				wrong++
			}
		}
		restore()
		if wrong == 0 {
			t.Errorf("the programs do not need what %q takes away", part)
		}
		controls = append(controls, fmt.Sprintf("%s=%d", part, wrong))
	}
	for part, body := range map[string]func(*explore.M){"nondeterminism": forgetful(secondRun), "stray": silentStray} {
		with := explore.Explore(explore.Config{}, body).Failure
		restore := explore.Break(part)
		without := explore.Explore(explore.Config{}, body).Failure
		restore()
		if with == nil || without != nil {
			t.Errorf("%s: with its check %v, without %v", part, with, without)
		}
	}
	t.Log(controls)
	if deadlocks < 80 {
		t.Errorf("%d programs can deadlock, want 80", deadlocks)
	}
	fmt.Printf("RIG explorer programs=%d deadlocks=%d dfs=%d sleep=%d dpor=%d controls=all\n",
		len(programs), deadlocks, total[explore.DFS], total[explore.Sleep], total[explore.DPOR])
}
