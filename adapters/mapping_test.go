package adapters

import (
	"strings"
	"testing"
)

func testMapper(t testing.TB) *Mapper {
	t.Helper()
	a := Args{outs: []OutputArg{{Index: 0, Target: "build/top.json"}, {Index: 1, Target: "odd name.txt"}}, staged: []string{"../s0/out.json", "../s1/out"}}
	return NewMapper(a, "/ws/x/.eda-sidecar/jobs/0197a", "/ws/x")
}

// mappings are texts with what a caller is to see.
func mappings() map[string]string {
	const job = "/ws/x/.eda-sidecar/jobs/0197a"
	return map[string]string{
		"":                                  "",
		"plain":                             "plain",
		"../s0/out.json":                    "build/top.json",
		"wrote ../s0/out.json.":             "wrote build/top.json.",
		"wrote `../s0/out.json'":            "wrote `build/top.json'",
		"../s1/out, ../s0/out.json\n":       "odd name.txt, build/top.json\n",
		"-o../s0/out.json":                  "-obuild/top.json",
		"../s1/out.bak":                     "../s1/out.bak",
		"../s1/output":                      "../s1/output",
		"x/../s0/out.json":                  "x/../s0/out.json",
		"../s0/out.jsonx ../s0/out.json/y":  "../s0/out.jsonx ../s0/out.json/y",
		job + "/s0/out.json: bad":           "build/top.json: bad",
		job + "/work/_run.ys:3":             "_run.ys:3",
		job + "/work/rtl/a.v":               "rtl/a.v",
		"in " + job + "/work, done":         "in ., done",
		"in " + job + "/work/ now":          "in . now",
		"/ws/x/rtl/a.v:1: error":            "rtl/a.v:1: error",
		"-I/ws/x/inc":                       "-Iinc",
		"/mnt/ws/x/rtl/a.v":                 "/mnt/ws/x/rtl/a.v",
		"/ws/xy/a.v":                        "/ws/xy/a.v",
		"cd /ws/x":                          "cd .",
		"(/ws/x/a.v)(/ws/x/b.v)":            "(a.v)(b.v)",
		"../s0/out.json../s0/out.json":      "../s0/out.json../s0/out.json",
		strings.Repeat("../s", 50) + " end": strings.Repeat("../s", 50) + " end",
	}
}

// wrongMappings returns the texts that do not come out right, through one way of mapping.
func wrongMappings(through func(string) string) (wrong []string) {
	for in, want := range mappings() {
		if got := through(in); got != want {
			wrong = append(wrong, in+" -> "+got+", want "+want)
		}
	}
	return wrong
}

func TestMapper(t *testing.T) {
	m := testMapper(t)
	if wrong := wrongMappings(m.String); wrong != nil {
		t.Errorf("%s", strings.Join(wrong, "\n"))
	}
	var off *Mapper // the control: mapping off
	if wrongMappings(off.String) == nil {
		t.Error("the test of mapping cannot fail")
	}
}

func BenchmarkMapper(b *testing.B) {
	m := testMapper(b)
	log := strings.Repeat("rtl/top.v:12: Warning: Identifier `\\foo' is implicitly declared.\n", 1<<10)
	b.SetBytes(int64(len(log)))
	for b.Loop() {
		m.String(log)
	}
}
