package strictjson

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name, text    string
		depth, folded int
		want          bool
	}{
		{"scalar", `3`, 0, 0, true},
		{"white_space", " {\"a\": [1, null]}\n", 2, 0, true},
		{"empty", ``, 9, 9, false},
		{"cut", `{"a":1`, 9, 9, false},
		{"behind", `{} 1`, 9, 9, false},
		{"syntax", `{"a" 1}`, 9, 9, false},
		{"trailing_comma", `[1,]`, 9, 9, false},
		{"not_utf8", "\"\xff\"", 9, 9, false},
		{"deep", `[[[]]]`, 2, 9, false},
		{"as_deep_as_allowed", `[[[]]]`, 3, 9, true},
		{"twice", `{"a":1,"b":2,"a":3}`, 9, 0, false},
		{"twice_escaped", `{"a":1,"\u0061":3}`, 9, 0, false},
		{"twice_below", `[{"x":{"a":1,"a":2}}]`, 9, 0, false},
		{"two_objects", `[{"a":1},{"a":{"a":2}}]`, 9, 9, true},
		{"case", `{"job":1,"Job":2}`, 9, 1, false},
		{"case_not_folded", `{"job":1,"Job":2}`, 9, 0, true},
		{"case_below_folded", `{"x":{"job":1,"Job":2}}`, 9, 1, true},
		{"long_s", `{"session":1,"\u017feſsion":2,"\u017fession":3}`, 9, 1, false},
	} {
		if err := Check([]byte(c.text), c.depth, c.folded); (err == nil) != c.want {
			t.Errorf("%s: got %v, want ok = %t", c.name, err, c.want)
		}
	}
}

// TestFoldsLikeDecoder: names that encoding/json takes for one field are one name here.
func TestFoldsLikeDecoder(t *testing.T) {
	for _, name := range []string{"session", "SESSION", "\u017fe\u017fsion", "task", "tas\u212a", "tasks", ""} {
		var into struct{ Session, Task int }
		text := `{"` + name + `":7}`
		if err := json.Unmarshal([]byte(text), &into); err != nil {
			t.Fatal(err)
		}
		for field, taken := range map[string]bool{"session": into.Session == 7, "task": into.Task == 7} {
			same := Check([]byte(`{"`+name+`":1,"`+field+`":2}`), 1, 1) != nil
			if same != taken {
				t.Errorf("%q and %q: one name = %t, one field = %t", name, field, same, taken)
			}
		}
	}
}

// FuzzCheck: what is accepted is JSON, and the names of its outermost object are as many as it has members.
func FuzzCheck(f *testing.F) {
	f.Add(`{"a":[{"b":1}],"c":"\u0061"}`)
	f.Add(`{"a":1,"a":2}`)
	f.Add(`[1,]`)
	f.Fuzz(func(t *testing.T, text string) {
		if Check([]byte(text), 100, 0) != nil {
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%q is not JSON", text)
		}
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &object) != nil || object == nil {
			return
		}
		members, dec := 0, json.NewDecoder(strings.NewReader(text))
		if _, err := dec.Token(); err != nil {
			t.Fatal(err)
		}
		for dec.More() {
			if _, err := dec.Token(); err != nil {
				t.Fatal(err)
			}
			var value json.RawMessage
			if err := dec.Decode(&value); err != nil {
				t.Fatal(err)
			}
			members++
		}
		if members != len(object) {
			t.Errorf("%q: %d members, %d names", text, members, len(object))
		}
	})
}
