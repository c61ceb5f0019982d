package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func text(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func patch(t testing.TB, s string) map[string]any {
	t.Helper()
	p, err := DecodePatch([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rfc7396 is appendix A of the RFC: its rows whose patch is an object, each below a member v so that the target may be
// anything.
func rfc7396() [][3]string {
	return [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	}
}

func TestMergeIsRFC7396(t *testing.T) {
	for _, c := range rfc7396() {
		s := State{Vars: patch(t, `{"v":`+c[0]+`}`)}
		got, err := s.Apply(Delta{Patch: patch(t, `{"v":`+c[1]+`}`), Keys: Keys{Names: []string{"v"}}})
		if want := `{"v":` + c[2] + `}`; err != nil || text(t, got.Vars) != want {
			t.Errorf("%s patched by %s: got %s, want %s, %v", c[0], c[1], text(t, got.Vars), want, err)
		}
	}
	// the control: a merge that only replaces members fails the same table
	wrong := 0
	for _, c := range rfc7396() {
		target := patch(t, `{"v":`+c[0]+`}`)
		maps.Copy(target, patch(t, `{"v":`+c[1]+`}`))
		if text(t, target) != `{"v":`+c[2]+`}` {
			wrong++
		}
	}
	if wrong == 0 {
		t.Error("the table does not tell a merge from a copy")
	}
}

func TestApplyRefusesUndeclared(t *testing.T) {
	s := State{Vars: map[string]any{"a": "old", "b": "old"}}
	for _, c := range []struct {
		name, patch string
		keys        Keys
		want        error
	}{
		{"declared", `{"a":"new"}`, Keys{Names: []string{"a"}}, nil},
		{"none", `{"a":"new"}`, Keys{}, ErrKey},
		{"other", `{"a":"new","b":"new"}`, Keys{Names: []string{"a"}}, ErrKey},
		{"deleted", `{"b":null}`, Keys{Names: []string{"a"}}, ErrKey},
		{"any", `{"a":"new","b":null,"c":1}`, Keys{Any: true}, nil},
		{"empty", `{}`, Keys{}, nil},
	} {
		if _, err := s.Apply(Delta{Patch: patch(t, c.patch), Keys: c.keys}); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

// full is a state in which everything nests, so that a shallow copy would share something.
func full(t testing.TB) State {
	s, err := State{}.Apply(Delta{
		Patch: patch(t, `{"o":{"p":{"q":[{"r":1}]}},"l":[["x"]]}`), Keys: Keys{Any: true},
		Artifacts: map[string]Artifact{"build/top.json": {SHA256: "00", Bytes: 1, Kind: "file", Job: "j", Tool: "t", At: time.Unix(5, 6).UTC()}},
		Tool:      "t", Last: Last{Job: "j", At: time.Unix(5, 6).UTC(), Code: "OK", Verdict: "ok", Data: patch(t, `{"cells":{"LUT4":[12]}}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestApplyLeavesItsReceiver(t *testing.T) {
	s := full(t)
	before := text(t, s)
	delta := Delta{
		Patch: patch(t, `{"o":{"p":{"q":null,"z":{"y":1}}},"l":[1],"n":{"m":[{}]}}`), Keys: Keys{Any: true},
		Artifacts: map[string]Artifact{"build/top.json": {SHA256: "01"}, "other": {}},
		Tool:      "t", Last: Last{Data: patch(t, `{"x":{"y":1}}`)},
	}
	next, err := s.Apply(delta)
	if err != nil || text(t, s) != before {
		t.Fatalf("got %s, want %s, %v", text(t, s), before, err)
	}
	given := text(t, delta)
	scribble(next.Vars)
	scribble(next.Last["t"].Data)
	if text(t, s) != before || text(t, delta) != given {
		t.Error("the new state shares values with the old one or with the delta")
	}
	clone := s.Clone()
	if diff := cmp.Diff(s, clone); diff != "" {
		t.Error(diff)
	}
	scribble(clone.Vars)
	scribble(clone.Last["t"].Data)
	delete(clone.Artifacts, "build/top.json")
	if text(t, s) != before {
		t.Error("a clone shares values")
	}
	// the control: a shallow copy is found out
	shallow := s
	shallow.Vars = maps.Clone(s.Vars)
	scribble(shallow.Vars)
	if text(t, s) == before {
		t.Error("scribbling on a shallow copy was not noticed")
	}
}

// scribble changes every map and array below v in place.
func scribble(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			scribble(e)
		}
		v["scribble"] = true
	case []any:
		for i := range v {
			scribble(v[i])
			v[i] = "scribble"
		}
	}
}

func TestLimits(t *testing.T) {
	vars := func(n, size int) map[string]any {
		m := map[string]any{}
		for i := range n {
			m[fmt.Sprint("k", i)] = strings.Repeat("x", size)
		}
		return m
	}
	deep := func(n int) map[string]any {
		m := map[string]any{}
		for range n - 1 {
			m = map[string]any{"d": m}
		}
		return m
	}
	many := map[string]Last{}
	for i := range 17 {
		many[fmt.Sprint("tool", i)] = Last{Data: vars(1, MaxLastData-20)}
	}
	for _, c := range []struct {
		name string
		s    State
		d    Delta
		want error
	}{
		{"vars", State{}, Delta{Patch: vars(MaxVars, 1)}, nil},
		{"vars_beyond", State{}, Delta{Patch: vars(MaxVars+1, 1)}, ErrLimit},
		{"vars_grow", State{Vars: vars(MaxVars, 1)}, Delta{Patch: map[string]any{"one": 1}}, ErrLimit},
		{"vars_shrink", State{Vars: vars(MaxVars, 1)}, Delta{Patch: map[string]any{"one": 1, "k0": nil}}, nil},
		{"bytes", State{}, Delta{Patch: vars(1, MaxVarsBytes-20)}, nil},
		{"bytes_beyond", State{}, Delta{Patch: vars(1, MaxVarsBytes)}, ErrLimit},
		{"deep", State{}, Delta{Patch: deep(maxDepth)}, nil},
		{"deep_beyond", State{}, Delta{Patch: deep(maxDepth + 2)}, ErrLimit},
		{"last", State{}, Delta{Tool: "t", Last: Last{Data: vars(1, MaxLastData-20)}}, nil},
		{"last_beyond", State{}, Delta{Tool: "t", Last: Last{Data: vars(1, MaxLastData)}}, ErrLimit},
		{"collide", State{}, Delta{Patch: map[string]any{"x": map[string]any{"\xff": 1, "\xfe": 2}}}, ErrState},
		{"state_beyond", State{Last: many}, Delta{}, ErrLimit},
	} {
		c.d.Keys.Any = true
		if _, err := c.s.Apply(c.d); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestOldestArtifactsGo(t *testing.T) {
	artifacts := map[string]Artifact{}
	for i := range MaxArtifacts {
		artifacts[fmt.Sprintf("f%04d", i)] = Artifact{At: time.Unix(int64(1000+i/2), 0)} // pairs of one time
	}
	s, err := State{}.Apply(Delta{Artifacts: artifacts})
	if err != nil || s.ArtifactsDropped != 0 {
		t.Fatal(s.ArtifactsDropped, err)
	}
	s, err = s.Apply(Delta{Artifacts: map[string]Artifact{"new": {At: time.Unix(9000, 0)}, "older": {At: time.Unix(1, 0)}, "f0001": {At: time.Unix(9000, 0)}}})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"older": false, "f0000": false, "f0001": true, "f0002": true, "new": true} {
		if _, got := s.Artifacts[path]; got != want {
			t.Errorf("%s: kept %v, want %v", path, got, want)
		}
	}
	if s.ArtifactsDropped != 2 || len(s.Artifacts) != MaxArtifacts {
		t.Errorf("dropped %d, kept %d", s.ArtifactsDropped, len(s.Artifacts))
	}
}

func TestRoundTrip(t *testing.T) {
	for name, s := range map[string]State{"empty": {}, "full": full(t)} {
		b, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b)
		if err != nil {
			t.Fatal(name, err)
		}
		again, err := got.Encode()
		if err != nil || !bytes.Equal(b, again) || Digest(b) != Digest(again) {
			t.Errorf("%s: got %s, want %s, %v", name, again, b, err)
		}
	}
	if b, err := (State{}).Encode(); err != nil || string(b) != `{"vars":{},"artifacts":{},"last":{}}` {
		t.Errorf("got %s, %v", b, err)
	}
	big := patch(t, `{"n":12345678901234567890.5}`) // a float64 would lose it
	s, err := State{}.Apply(Delta{Patch: big, Keys: Keys{Any: true}})
	if err != nil || text(t, s.Vars) != `{"n":12345678901234567890.5}` {
		t.Errorf("got %s, %v", text(t, s.Vars), err)
	}
}

func TestDecodeIsStrict(t *testing.T) {
	b, err := full(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	good := string(b)
	for name, body := range map[string]string{
		"empty": ``, "array": `[]`, "null": `null`, "behind": good + `{}`, "cut": good[:len(good)-1],
		"unknown":    strings.Replace(good, `"vars"`, `"x":1,"vars"`, 1),
		"doubled":    strings.Replace(good, `"vars"`, `"vars":{},"vars"`, 1),
		"nested":     strings.Replace(good, `"q":`, `"q":0,"q":`, 1),
		"in_array":   strings.Replace(good, `"r":1`, `"r":1,"r":1`, 1),
		"other_case": strings.Replace(good, `"bytes"`, `"bytes":2,"Bytes"`, 1),
		"not_utf8":   strings.Replace(good, `"x"`, "\"\xff\"", 1),
		"case":       strings.Replace(good, `"bytes"`, `"Bytes"`, 1),
		"missing":    strings.Replace(good, `"sha256":"00",`, ``, 1),
		"limit":      strings.Replace(good, `"x"`, `"`+strings.Repeat("x", MaxVarsBytes)+`"`, 1),
		"deep":       strings.Replace(good, `"x"`, strings.Repeat("[", 50)+strings.Repeat("]", 50), 1),
	} {
		if s, err := Decode([]byte(body)); !errors.Is(err, ErrState) {
			t.Errorf("%s: got %v, %v, want ErrState", name, s, err)
		}
	}
	if _, err := Decode(b); err != nil { // the control: it is the edits that are refused
		t.Error(err)
	}
	for _, body := range []string{``, `1`, `"x"`, `[]`, `{"a":1,"a":2}`, `{} {}`, `{"a":}`, `{"a":"` + strings.Repeat("x", MaxVarsBytes) + `"}`} {
		if p, err := DecodePatch([]byte(body)); !errors.Is(err, ErrState) {
			t.Errorf("patch %.20s: got %v, %v, want ErrState", body, p, err)
		}
	}
}

// FuzzSession patches states: what is accepted stays inside the limits and the declared keys, and reads back.
func FuzzSession(f *testing.F) {
	for _, c := range rfc7396() {
		f.Add([]byte(`{"vars":{"v":`+c[0]+`},"artifacts":{},"last":{}}`), []byte(`{"v":`+c[1]+`}`))
	}
	b, err := full(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, []byte(`{"v":{"a":null},"o":null}`))
	f.Add([]byte(`{"vars":{"a":1,"a":2}}`), []byte(`{"v":1}`))
	f.Add([]byte(`{"Vars":{},"last":{"":{"At":"2026-01-01T00:00:00Z"}}}`), []byte(`{"v":{"":[{"a":1,"\u0061":2}]}}`))
	f.Fuzz(func(t *testing.T, state, merge []byte) {
		s, err := Decode(state)
		if err != nil {
			return
		}
		before := text(t, s)
		p, err := DecodePatch(merge)
		if err != nil {
			return
		}
		next, err := s.Apply(Delta{Patch: p, Keys: Keys{Names: []string{"v"}}})
		if text(t, s) != before {
			t.Fatalf("applying %s changed %s", merge, before)
		}
		if err != nil {
			return
		}
		encoded, err := next.Encode()
		if err != nil {
			t.Fatalf("%s patched by %s: %v", state, merge, err)
		}
		back, err := Decode(encoded)
		if err != nil || text(t, back) != text(t, next) {
			t.Fatalf("%s reads back as %s, %v", encoded, text(t, back), err)
		}
		delete(next.Vars, "v")
		delete(s.Vars, "v")
		if text(t, next.Vars) != text(t, State{Vars: s.Vars}.Clone().Vars) && len(s.Vars) > 0 {
			t.Fatalf("%s changed more than its key in %s", merge, state)
		}
	})
}
