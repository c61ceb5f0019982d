package sidecar

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

// load writes a configuration file and loads it for a fresh workspace.
func load(t testing.TB, text string, change func(*Flags)) (Config, error) {
	t.Helper()
	dir := t.TempDir()
	flags := Flags{Workspace: filepath.Join(dir, "ws"), Config: filepath.Join(dir, "config.yaml"), Environ: []string{"LM_LICENSE_FILE=27000@host", "LM_LICENSE=no", "TOKEN=secret"}}
	ok(t, os.Mkdir(flags.Workspace, 0o755))
	ok(t, os.WriteFile(flags.Config, []byte(text), 0o600))
	if change != nil {
		change(&flags)
	}
	return LoadConfig(flags)
}

const tool = `
tools:
  - name: lint
    doc: Lints a design.
    program: {names: [true]}
`

// everything sets each key of the file.
const everything = `
state_dir: /var/lib/eda
node: node-7
cgroup_parent: /sys/fs/cgroup/eda
limits: required
path: /opt/eda/bin:/usr/bin
readable: [/opt/pdk]
allow_script: true
env: {pass: [LM_LICENSE_FILE]}
queue_timeout: 5s
kill_timeout: 20s
grace: 500ms
backup_retention: 1h
audit_retention: 48h
min_free_bytes: 1GiB
min_free_inodes: 7
listen: 0.0.0.0:7000
metrics_listen: 0.0.0.0:7001
auth: token
tokens: /etc/eda/tokens.yaml
allowed_hosts: [eda.example.com, "eda.example.com:8443", "[2001:db8::1]:7000"]
allowed_origins: [https://eda.example.com]
tls_cert: /etc/eda/cert.pem
tls_key: /run/eda/key.pem
tls_terminated_upstream: false
rate_limit: 7
drain_timeout: 3s
tool_limits:
  yosys_synth: {wall: 1m, memory: 1GiB, pids: 9, staging: 2MiB, log: 64KiB}
`

func TestConfig(t *testing.T) {
	c, err := load(t, "", nil)
	ok(t, err)
	if c.QueueTimeout != time.Minute || c.KillTimeout != 10*time.Second || c.Grace != 2*time.Second || c.BackupRetention != 10*time.Minute ||
		c.AuditRetention != 2160*time.Hour || c.MinFreeBytes != 64<<20 || c.MinFreeInodes != 128 || c.Path != "/usr/local/bin:/usr/bin:/bin" ||
		c.LimitsRequired || c.AllowScript || c.StateDir != filepath.Join(c.Workspace, ".eda-sidecar", "state") || len(c.Catalog.Tools()) == 0 {
		t.Errorf("defaults: %+v", c)
	}
	c, err = load(t, everything, nil)
	ok(t, err)
	l := c.ToolLimits["yosys_synth"]
	if c.StateDir != "/var/lib/eda" || c.Node != "node-7" || c.CgroupParent != "/sys/fs/cgroup/eda" || !c.LimitsRequired || c.Path != "/opt/eda/bin:/usr/bin" ||
		!slices.Equal(c.Readable, []string{"/opt/pdk"}) || !c.AllowScript || !slices.Equal(c.PassEnv, []string{"LM_LICENSE_FILE=27000@host"}) ||
		c.QueueTimeout != 5*time.Second || c.KillTimeout != 20*time.Second || c.Grace != 500*time.Millisecond || c.BackupRetention != time.Hour ||
		c.AuditRetention != 48*time.Hour || c.MinFreeBytes != 1<<30 || c.MinFreeInodes != 7 ||
		c.Listen != "0.0.0.0:7000" || c.Tokens != "/etc/eda/tokens.yaml" || len(c.AllowedHosts) != 3 || len(c.AllowedOrigins) != 1 ||
		c.TLSCert != "/etc/eda/cert.pem" || c.TLSKey != "/run/eda/key.pem" || c.RateLimit != 7 || c.MetricsListen != "0.0.0.0:7001" || c.Auth != "token" || c.DrainTimeout != 3*time.Second ||
		l.Wall != time.Minute || l.MemoryBytes != 1<<30 || l.Pids != 9 || l.StagingBytes != 2<<20 || l.LogBytes != 64<<10 {
		t.Errorf("everything: %+v", c)
	}
	if _, err = load(t, "listen: ':8080'\nallowed_hosts: [eda]\ntls_terminated_upstream: true", nil); err != nil {
		t.Errorf("behind a proxy: %v", err)
	}
	if c, err = load(t, "min_free_inodes: 0", nil); err != nil || c.MinFreeInodes != 0 {
		t.Errorf("no minimum of inodes: %d, %v", c.MinFreeInodes, err)
	}
	for _, k := range ConfigKeys() { // the table of the documentation, and the file's tags
		if last := k.Key[strings.LastIndex(k.Key, ".")+1:]; !strings.Contains(everything+tool, last+":") {
			t.Errorf("key %q is not in this test", k.Key)
		}
	}
	if n := reflect.TypeFor[file]().NumField(); n != len(ConfigKeys()) {
		t.Errorf("%d fields, %d keys in the table", n, len(ConfigKeys()))
	}
}

// TestConfigFlags lets flags win over the file.
func TestConfigFlags(t *testing.T) {
	if c, err := load(t, "auth: token", func(f *Flags) { f.Auth = "local" }); err != nil || c.Auth != "local" {
		t.Errorf("auth is %q, %v", c.Auth, err)
	}
	state := t.TempDir()
	c, err := load(t, "state_dir: /var/lib/eda\n", func(f *Flags) { f.StateDir = state })
	ok(t, err)
	if c.StateDir != state {
		t.Errorf("state directory %q", c.StateDir)
	}
	link := filepath.Join(t.TempDir(), "link")
	c, err = load(t, "", func(f *Flags) { ok(t, os.Symlink(f.Workspace, link)); f.Workspace = link })
	ok(t, err)
	if c.Workspace == link {
		t.Errorf("workspace %q is a link", c.Workspace)
	}
}

// TestConfigRefuses wants every mistake named by its key, and all of them at once.
func TestConfigRefuses(t *testing.T) {
	site, err := cgroup.Discover(cgroup.Options{})
	ok(t, err)
	for _, tt := range []struct {
		name, text string
		change     func(*Flags)
		want       []string
	}{
		{name: "unknown_key", text: "stat_dir: /x\nno_such: 1", want: []string{"stat_dir", "no_such"}},
		{name: "unknown_and_bad", text: "no_such: 1\ngrace: 0s", want: []string{"no_such", "grace"}},
		{name: "twice", text: "grace: 1s\ngrace: 2s", want: []string{"grace"}},
		{name: "no_yaml", text: "{", want: []string{"config"}},
		{name: "wrong_type", text: "readable: {a: 1}\nmin_free_inodes: many", want: []string{"line 1", "line 2"}},
		{
			name: "words", text: "queue_timeout: [1]\nallow_script: maybe\ntool_limits:\n  run:\n    pids: few\nreadable:\n- {a: 1}\ngrace: 1s\ngrace: 2s\ntools: {a: 1}\nno_such: 1",
			want: []string{
				"line 1: queue_timeout: want text, got a list", "line 2: allow_script: want true or false, got text `maybe`", "line 5: pids: want a whole number, got text `few`",
				"line 7: readable: want text, got keys with values", "line 9: key grace is given twice", "line 10: tools: want a list, got keys with values", "line 11: there is no key no_such",
			},
		},
		{
			name: "words_of_tools", text: "tools:\n- name: x\n  title: [1]\n  bogus: 1\n  params: [{name: p, kind: {a: 1}, required: perhaps}]\n  limits: {wall: 1d}\n  steps: [{argv: [[x]], makes: [3]}]",
			want: []string{
				"line 3: title: want text, got a list", "line 4: there is no key bogus", "line 5: params: want text, got keys with values", "line 5: params: want true or false, got text `perhaps`",
				"line 6: limits: want a duration, such as 10m, got text `1d`", "line 7: steps: want keys with values, got a list", "line 7: steps: want keys with values, got a number `3`", "tools[0] (x)",
			},
		},
		{name: "server", text: "listen: 0.0.0.0:8080\nmetrics_listen: nowhere\nauth: none\ndrain_timeout: 0s", want: []string{"listen", "metrics_listen", "auth", "drain_timeout"}},
		{name: "local_script", text: "auth: local\nallow_script: true", want: []string{"auth: local with allow_script"}},
		{name: "local_script_flag", text: "allow_script: true", change: func(f *Flags) { f.Auth = "local" }, want: []string{"auth: local with allow_script"}},
		{name: "local_in_a_pod", change: func(f *Flags) { f.Auth = "local"; f.Environ = []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"} }, want: []string{"auth: local in a pod"}},
		{name: "open", text: "listen: ':8080'", want: []string{"listen: not a loopback address", "allowed_hosts: "}},
		{name: "open_host", text: "listen: localhost.:8080\nallowed_hosts: [eda]", want: []string{"listen: not a loopback address"}},
		{name: "open_tls", text: "listen: '[::]:8080'\ntls_cert: /x\ntls_key: /y", want: []string{"allowed_hosts: "}},
		{name: "open_local", text: "listen: 10.0.0.1:8080\nauth: local\nallowed_hosts: [eda]\ntls_terminated_upstream: true", want: []string{"auth: local with a listen that is not loopback"}},
		{name: "local_tokens", text: "auth: local\ntokens: /x", want: []string{"auth: local with tokens"}},
		{name: "half_a_pair", text: "tls_cert: /x", want: []string{"tls_key: "}},
		{name: "other_half", text: "tls_key: /x", want: []string{"tls_cert: "}},
		{name: "key_in_workspace", text: "tls_cert: /x", change: func(f *Flags) { f.TLSKey = f.Workspace + "/x/key" }, want: []string{"tls_key: "}},
		{name: "relative", text: "tokens: x\ntls_cert: y\ntls_key: z", want: []string{"tokens: ", "tls_cert: ", "tls_key: "}},
		{
			name: "hosts", text: "allowed_hosts: ['', 'http://a', a/b, ':1', 'u@a']\nallowed_origins: ['null', 'a', 'ftp://a', 'https://a/', 'https://u@a']\nrate_limit: 0",
			want: []string{
				"allowed_hosts[0]", "allowed_hosts[1]", "allowed_hosts[2]", "allowed_hosts[3]", "allowed_hosts[4]",
				"allowed_origins[0]", "allowed_origins[1]", "allowed_origins[2]", "allowed_origins[3]", "allowed_origins[4]", "rate_limit",
			},
		},
		{name: "limits", text: "limits: some", want: []string{"limits"}},
		{
			name: "durations", text: "queue_timeout: 5\nkill_timeout: -1s\ngrace: soon\nbackup_retention: 0s\naudit_retention: 1y",
			want: []string{"queue_timeout", "kill_timeout", "grace", "backup_retention", "audit_retention"},
		},
		{name: "sizes", text: "min_free_bytes: lots\nmin_free_inodes: -1", want: []string{"min_free_bytes", "min_free_inodes"}},
		{
			name: "paths", text: "path: bin:/usr/bin/../bin\nreadable: [pdk]\ncgroup_parent: eda\nstate_dir: state",
			want: []string{"path[0]", "path[1]", "readable[0]", "cgroup_parent", "state_dir"},
		},
		{name: "empty_path_entry", text: "path: '/usr/bin:'", want: []string{"path[1]"}},
		{name: "env", text: "env: {pass: [LD_PRELOAD, 'A=B', '']}", want: []string{"env.pass[0]", "env.pass[1]", "env.pass[2]"}},
		{
			name: "tool_limits", text: "tool_limits: {no_tool: {wall: 1m}, yosys_synth: {wall: x, memory: y, pids: -1, staging: z, log: 0}}",
			want: []string{"tool_limits.no_tool", "tool_limits.yosys_synth.wall", ".memory", ".pids", ".staging", ".log"},
		},
		{name: "short_wall", text: "tool_limits: {yosys_synth: {wall: 999ms}}", want: []string{"tool_limits.yosys_synth.wall"}},
		{name: "tools", text: "grace: x\ntools: [{name: BAD}]", want: []string{"grace", "tools[0]"}},
		{name: "state_in_workspace", change: func(f *Flags) { f.StateDir = filepath.Join(f.Workspace, "state") }, want: []string{"state_dir"}},
		{name: "state_in_jobs", change: func(f *Flags) { f.StateDir = filepath.Join(f.Workspace, ".eda-sidecar", "jobs") }, want: []string{"state_dir"}},
		{name: "state_is_workspace", change: func(f *Flags) { f.StateDir = f.Workspace }, want: []string{"state_dir"}},
		{name: "state_holds_workspace", change: func(f *Flags) { f.StateDir = filepath.Dir(f.Workspace) }, want: []string{"state_dir"}},
		{name: "readable_state", text: "state_dir: /var/lib/eda\nreadable: [/var/lib, /var/lib/eda/x]", want: []string{"readable[0]", "readable[1]"}},
		{name: "readable_cgroupfs", text: "readable: [/usr, " + site.Mount + "]", want: []string{"readable[1]", "cgroupfs"}},
		{name: "no_workspace", change: func(f *Flags) { f.Workspace += "/none" }, want: []string{"workspace"}},
		{name: "file_workspace", change: func(f *Flags) { f.Workspace = f.Config }, want: []string{"workspace"}},
		{name: "root_workspace", change: func(f *Flags) { f.Workspace = "/" }, want: []string{"workspace"}},
		{name: "no_config", change: func(f *Flags) { f.Config += ".none" }, want: []string{"config"}},
		{name: "directory_config", change: func(f *Flags) { f.Config = f.Workspace }, want: []string{"config"}},
		{name: "large_config", text: "# " + strings.Repeat("x", maxConfig), want: []string{"config"}},
		{name: "many", text: "grace: x\nlimits: y\nreadable: [z]", change: func(f *Flags) { f.Workspace = "/" }, want: []string{"grace", "limits", "readable[0]", "workspace"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := load(t, tt.text, tt.change)
			if err == nil {
				t.Fatalf("accepted: %+v", c)
			}
			lines := strings.Split(err.Error(), "\n")
			slices.Sort(lines)
			if code := regexp.MustCompile(`!!|sidecar\.|adapters\.|struct|\[\]|unmarshal`).FindString(err.Error()); code != "" || len(slices.Compact(slices.Clone(lines))) != len(lines) {
				t.Errorf("it says a thing twice, or %q: %q", code, lines)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if !reflect.ValueOf(c).IsZero() {
				t.Errorf("a configuration beside an error: %+v", c)
			}
		})
	}
}

// FuzzConfig accepts no text whose values break the rules that the engine rests on.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{"", everything, tool, everything + tool, "grace: 0s", "tool_limits: {x: {}}", "path: ':'", "env: {pass: [A]}", "a: &a [*a]", "{", "\x00", "grace: 1s\n---\ngrace: 2s"} {
		f.Add(seed)
	}
	dir := f.TempDir()
	flags := Flags{Workspace: dir, Environ: []string{"A=1", "LD_PRELOAD=x"}}
	f.Fuzz(func(t *testing.T, text string) {
		flags := flags
		flags.Config = filepath.Join(t.TempDir(), "config.yaml")
		ok(t, os.WriteFile(flags.Config, []byte(text), 0o600))
		c, err := LoadConfig(flags)
		if err != nil {
			return
		}
		var errs []error
		v := &validator{errs: &errs}
		v.absolute("state", c.StateDir)
		v.absolute("workspace", c.Workspace)
		for _, p := range append(filepath.SplitList(c.Path), c.Readable...) {
			v.absolute("path", p)
			if within(c.StateDir, p) && slices.Contains(c.Readable, p) {
				v.bad("readable", "%q opens the state directory", p)
			}
		}
		for _, d := range []time.Duration{c.QueueTimeout, c.KillTimeout, c.Grace, c.BackupRetention, c.AuditRetention} {
			if d <= 0 {
				v.bad("duration", "%v", d)
			}
		}
		if c.MinFreeBytes <= 0 || c.MinFreeInodes < 0 || c.Catalog == nil || slices.Contains(c.PassEnv, "LD_PRELOAD=x") {
			v.bad("values", "%+v", c)
		}
		for name, l := range c.ToolLimits {
			if found, _ := c.Catalog.Tool(name); found == nil || l.Wall < 0 || l.MemoryBytes < 0 || l.Pids < 0 || l.StagingBytes < 0 || l.LogBytes < 0 {
				v.bad("limits", "%s %+v", name, l)
			}
		}
		if err := errors.Join(errs...); err != nil {
			t.Errorf("accepted %q: %v", text, err)
		}
	})
}
