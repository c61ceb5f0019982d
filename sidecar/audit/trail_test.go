package audit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// entries is a trail of two jobs, one committed and one timed out, after ledger.opened.
func entries() []Entry {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	var all []Entry
	add := func(n int, job string, k Kind, data map[string]any) {
		e := Entry{Seq: int64(len(all) + 1), Workspace: "ws/1"}
		e.Event = Event{Kind: k, Job: job, N: n, At: at.Add(time.Duration(len(all)) * time.Second), Data: data}
		if job != "" {
			e.Session, e.Tool, e.Principal, e.RequestID = "s-"+job, "yosys_synth", "me <&> \"you\"", "7"
		}
		all = append(all, e)
	}
	add(0, "", LedgerOpened, map[string]any{"epoch": 1})
	add(1, "a", Allow, map[string]any{"args_sha256": "00"})
	add(1, "b", Allow, nil)
	add(2, "a", Start, map[string]any{"pid": 7, "group": "/x", "nested": map[string]any{"a": []any{"x", "y"}, "b": 1.5}})
	add(2, "b", Start, nil)
	add(3, "a", Commit, map[string]any{"outputs": []any{map[string]any{"name": "n"}, map[string]any{"name": "m"}}})
	add(3, "b", Timeout, nil)
	add(4, "b", WorkerTerminated, nil)
	add(5, "b", Rollback, map[string]any{"code": "TOOL_TIMEOUT"})
	return all
}

func rows(t testing.TB, entries []Entry) (all []Row) {
	t.Helper()
	var head Head
	for _, e := range entries {
		body, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		head = head.Next(body)
		all = append(all, Row{Columns: e.Columns(), Body: body, Hash: head.Hash})
	}
	return all
}

// verify returns the number of the first event at fault, 0 if there is none.
func verify(t testing.TB, rows []Row) int64 {
	t.Helper()
	v := NewVerifier(Head{}, func(e Entry) (Order, error) { return Order{}, nil })
	for _, r := range rows {
		if _, err := v.Add(r); err != nil {
			var f *Fault
			if !errors.As(err, &f) || !errors.Is(err, ErrTrail) {
				t.Fatalf("got %v, want a *Fault", err)
			}
			return f.Seq
		}
	}
	return 0
}

func TestBodyRoundTrip(t *testing.T) {
	for _, e := range entries() {
		body, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(body)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		again, err := Encode(got)
		if err != nil || !bytes.Equal(again, body) {
			t.Errorf("got  %s\nwant %s, %v", again, body, err)
		}
		got.Data, e.Data = nil, nil
		if diff := cmp.Diff(e, got); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}

func TestBodyText(t *testing.T) {
	body, err := Encode(entries()[5])
	const want = `{"specversion":"1.0","id":"a/3","source":"/eda-sidecar/ws/1","type":"io.eda-sidecar.commit","subject":"a",` +
		`"time":"2026-01-02T03:04:10.000000678Z","datacontenttype":"application/json","sequence":"00000000000000000006",` +
		`"data":{"execution_job_id":"a","outputs":[{"name":"n"},{"name":"m"}],"principal":"me \u003c\u0026\u003e \"you\"","request_id":"7","session":"s-a","tool":"yosys_synth"}}`
	if err != nil || string(body) != want {
		t.Errorf("got  %s\nwant %s, %v", body, want, err)
	}
}

func TestDecodeIsStrict(t *testing.T) {
	good, err := Encode(entries()[3])
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("no %s in %s", old, good)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for name, body := range map[string]string{
		"empty":      "",
		"text":       `"x"`,
		"behind":     string(good) + " {}",
		"space":      string(good) + " ",
		"cut":        string(good[:len(good)-1]),
		"unknown":    edit(`{"spec`, `{"more":1,"spec`),
		"doubled":    edit(`"id":`, `"id":"a/2","id":`),
		"escaped":    edit(`"id":`, `"\u0069d":"a/2","id":`),
		"case":       edit(`"id":`, `"ID":"a/2","id":`),
		"folded":     edit(`"specversion":"1.0"`, `"specversion":"1.0","ſpecversion":"1.0"`),
		"in_data":    edit(`"pid":7`, `"pid":8,"pid":7`),
		"in_nested":  edit(`"b":1.5`, `"b":1,"b":1.5`),
		"behind_arr": edit(`["x","y"],"b"`, `["x","y"],"a"`),
		"version":    edit(`"1.0"`, `"0.3"`),
		"type":       edit(`io.eda-sidecar.start`, `com.example.start`),
		"source":     edit(`/eda-sidecar/`, `/other/`),
		"id":         edit(`a/2`, `a/02`),
		"subject":    edit(`"subject":"a"`, `"subject":"b"`),
		"data_job":   edit(`"execution_job_id":"a"`, `"execution_job_id":"b"`),
		"data_null":  edit(`"session":"s-a"`, `"session":null`),
		"time":       edit(`2026-01-02T`, `2026-01-02 `),
		"sequence":   edit(`00000000000000000004`, `4`),
		"deep":       edit(`"pid":7`, `"pid":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)),
		"long":       edit(`"pid":7`, `"pid":"`+strings.Repeat("x", MaxBody)+`"`),
	} {
		if e, err := Decode([]byte(body)); !errors.Is(err, ErrEvent) {
			t.Errorf("%s: got %v, %v, want ErrEvent", name, e, err)
		}
	}
	if _, err := Decode(good); err != nil { // the control: it is the edits that are refused
		t.Error(err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*Entry){
		"no_kind":    func(e *Entry) { e.Kind = "" },
		"no_time":    func(e *Entry) { e.At = time.Time{} },
		"no_job":     func(e *Entry) { e.Job = "" },
		"no_number":  func(e *Entry) { e.N = 0 },
		"ledger_job": func(e *Entry) { e.Kind = LedgerOpened },
		"reserved":   func(e *Entry) { e.Data = map[string]any{"tool": "x"} },
		"not_json":   func(e *Entry) { e.Data = map[string]any{"x": func() {}} },
		"late":       func(e *Entry) { e.At = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"collide":    func(e *Entry) { e.Data = map[string]any{"x": map[string]any{"\xff": 1, "\xfe": 2}} },
		"deep": func(e *Entry) {
			for range 40 {
				e.Data = map[string]any{"x": e.Data}
			}
		},
		"not_utf8":     func(e *Entry) { e.Tool = "\xff" },
		"long_name":    func(e *Entry) { e.Session = strings.Repeat("x", maxName+1) },
		"long_payload": func(e *Entry) { e.Data = map[string]any{"x": strings.Repeat("x", MaxBody)} },
	} {
		e := entries()[1]
		change(&e)
		if body, err := Encode(e); !errors.Is(err, ErrEvent) {
			t.Errorf("%s: got %s, %v, want ErrEvent", name, body, err)
		}
	}
}

func TestVerifierNamesTheFirst(t *testing.T) {
	relink := func(rows []Row) { // what somebody does who knows the chain
		var head Head
		for i := range rows {
			head = head.Next(rows[i].Body)
			rows[i].Hash = head.Hash
		}
	}
	body := func(i int, change func(*Entry)) []byte {
		e := entries()[i]
		change(&e)
		b, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name   string
		change func(r []Row) []Row
		want   int64
	}{
		{"whole", func(r []Row) []Row { return r }, 0},
		{"dropped", func(r []Row) []Row { return slices.Delete(r, 3, 4) }, 5},
		{"doubled", func(r []Row) []Row { return slices.Insert(r, 3, r[2]) }, 3},
		{"swapped", func(r []Row) []Row { r[3], r[4] = r[4], r[3]; return r }, 5},
		{"swapped_bodies", func(r []Row) []Row { r[3].Body, r[4].Body = r[4].Body, r[3].Body; return r }, 4},
		{"flipped_byte", func(r []Row) []Row {
			r[5].Body = bytes.Replace(r[5].Body, []byte("commit"), []byte("cancel"), 1)
			return r
		}, 6},
		{"flipped_hash", func(r []Row) []Row { r[5].Hash = slices.Clone(r[5].Hash); r[5].Hash[0] ^= 1; return r }, 6},
		{"column", func(r []Row) []Row { r[5].Principal = "other"; return r }, 6},
		{"column_at", func(r []Row) []Row { r[5].At++; return r }, 6},
		{"relinked_order", func(r []Row) []Row {
			r[8] = Row{Body: body(8, func(e *Entry) { e.Kind = Commit })}
			r[8].Columns = entries()[8].Columns()
			r[8].Kind = "commit"
			relink(r)
			return r
		}, 9},
		{"relinked_number", func(r []Row) []Row {
			r[8] = Row{Columns: r[8].Columns, Body: body(8, func(e *Entry) { e.N = 6 })}
			relink(r)
			return r
		}, 9},
		{"relinked_second_allow", func(r []Row) []Row {
			r[8] = Row{Columns: r[8].Columns, Body: body(8, func(e *Entry) { e.N, e.Kind = 1, Allow })}
			r[8].Kind = "allow"
			relink(r)
			return r
		}, 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := verify(t, c.change(rows(t, entries()))); got != c.want {
				t.Errorf("got event %d, want %d", got, c.want)
			}
		})
	}
}

// TestVerifierForgets keeps its memory bounded, and asks for what it forgot.
func TestVerifierForgets(t *testing.T) {
	var all []Entry
	at := time.Unix(1, 0)
	add := func(n int, job string, k Kind) {
		all = append(all, Entry{Seq: int64(len(all) + 1), Workspace: "w", Event: Event{Kind: k, Job: job, N: n, At: at}})
	}
	for i := range 20 {
		job := fmt.Sprint("read-", i)
		add(1, job, Allow)
		add(2, job, Start)
		add(3, job, Finish)
	}
	add(4, "read-0", WorkerTerminated)
	asked := 0
	v := NewVerifier(Head{}, func(e Entry) (Order, error) {
		asked++
		return Order{State: Finished, N: 3}, nil
	})
	v.bound = 4
	for _, r := range rows(t, all) {
		if _, err := v.Add(r); err != nil {
			t.Fatal(err)
		}
		if len(v.orders) > v.bound {
			t.Fatalf("holds %d orders", len(v.orders))
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	// the control: without the answer the last event is number 4 of nothing
	if got := verify(t, rows(t, []Entry{all[0], {Seq: 2, Workspace: "w", Event: Event{Kind: WorkerTerminated, Job: "read-9", N: 4, At: at}}})); got != 2 {
		t.Errorf("got event %d, want 2", got)
	}
}

func FuzzBody(f *testing.F) {
	for _, e := range entries() {
		body, err := Encode(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte(`{"specversion":"1.0","id":"a/2","id":"a/1"}`))
	f.Add([]byte(`{"data":{"":{"\u0000":[[{}]]}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := Decode(body)
		if err != nil {
			return
		}
		again, err := Encode(e)
		if err != nil {
			t.Fatalf("%s was accepted, but %v", body, err)
		}
		if other, err := Decode(again); err != nil || !cmp.Equal(e, other) {
			t.Fatalf("%s reads back as %v, %v", body, other, err)
		}
	})
}

// FuzzAudit changes a trail in up to three places: it verifies only if it is what it was, and the event that is named
// is the first that differs.
func FuzzAudit(f *testing.F) {
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{1, 3, 40})
	f.Add([]byte{2, 5, 0, 3, 2, 2})
	f.Add([]byte{3, 0, 8, 4, 1, 7, 0, 4, 200})
	f.Fuzz(func(t *testing.T, ops []byte) {
		want := rows(t, entries())
		got := rows(t, entries())
		for ; len(ops) >= 3 && len(got) > 1; ops = ops[3:] {
			i, j := int(ops[1])%len(got), int(ops[2])
			switch ops[0] % 5 {
			case 0: // a bit of the body
				b := slices.Clone(got[i].Body)
				b[j%len(b)] ^= 1 << (ops[0] % 8)
				got[i].Body = b
			case 1:
				got = slices.Delete(got, i, i+1)
			case 2:
				got = slices.Insert(got, j%len(got), got[i])
			case 3:
				j %= len(got)
				got[i], got[j] = got[j], got[i]
			case 4:
				got[i].Session += string(rune('a' + j%26))
			}
		}
		first := 0
		for first < len(got) && first < len(want) && cmp.Equal(got[first], want[first]) {
			first++
		}
		switch named := verify(t, got); {
		case first == len(got): // a trail that merely ends early verifies; its head does not match the anchor
			if named != 0 {
				t.Fatalf("a right prefix of %d events fails at %d", first, named)
			}
		case named != got[first].Seq:
			t.Fatalf("the first that differs is %d, named is %d", got[first].Seq, named)
		}
	})
}

func BenchmarkVerifier(b *testing.B) {
	all := rows(b, entries())
	b.ReportAllocs()
	for b.Loop() {
		verify(b, all)
	}
	b.ReportMetric(float64(b.N*len(all))/b.Elapsed().Seconds(), "events/s")
}
