package sidecar

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// Config is everything that can be set, validated. Make one with LoadConfig.
type Config struct {
	Workspace       string // absolute, without symbolic links
	StateDir        string // absolute
	Node            string // name of this machine in the journal; empty: the host name
	CgroupParent    string // absolute cgroup directory for our groups; empty: discover
	LimitsRequired  bool   // a limit that cannot be set refuses the tool
	Path            string // PATH of tools
	Readable        []string
	PassEnv         []string // NAME=value pairs that a tool gets if it asks for the name
	AllowScript     bool     // tools of trust script may be called
	QueueTimeout    time.Duration
	KillTimeout     time.Duration
	Grace           time.Duration
	BackupRetention time.Duration // how long a displaced original is kept
	AuditRetention  time.Duration
	MinFreeBytes    int64
	MinFreeInodes   int64
	ToolLimits      map[string]adapters.Limits
	Catalog         *adapters.Catalog

	// of a server
	Listen          string        // host:port of MCP
	MetricsListen   string        // host:port of metrics and probes; empty: none
	Auth            string        // token or local
	Tokens          string        // absolute path of the list of tokens; empty: the one of the state directory
	AllowedHosts    []string      // values of Host; nil: the loopback names
	AllowedOrigins  []string      // values of Origin; nil: those of allowed loopback hosts
	TLSCert, TLSKey string        // absolute paths of a PEM pair; empty: no TLS
	RateLimit       int64         // requests a second of one principal
	DrainTimeout    time.Duration // for running jobs, before they are cancelled
}

// Flags are what the command line sets. They win over the file.
type Flags struct {
	Workspace string   // must not be empty
	StateDir  string   // empty: the file's, else .eda-sidecar/state of the workspace
	Config    string   // path of the file; empty: none
	Environ   []string // our own environment, of which env.pass picks, and which tells of a pod

	Listen, MetricsListen, Auth, TLSCert, TLSKey string // of a server; empty: the file's
}

// groups says where our groups are made, and looked for.
func (c Config) groups() cgroup.Options {
	return cgroup.Options{Parent: c.CgroupParent, Workspace: c.Workspace, Node: c.Node, LimitsRequired: c.LimitsRequired}
}

// file is the configuration file. docs/config.md is held against its tags.
type file struct {
	StateDir        string                  `yaml:"state_dir"`
	Node            string                  `yaml:"node"`
	CgroupParent    string                  `yaml:"cgroup_parent"`
	Limits          string                  `yaml:"limits"`
	Path            string                  `yaml:"path"`
	Readable        []string                `yaml:"readable"`
	AllowScript     bool                    `yaml:"allow_script"`
	Env             struct{ Pass []string } `yaml:"env"`
	QueueTimeout    string                  `yaml:"queue_timeout"`
	KillTimeout     string                  `yaml:"kill_timeout"`
	Grace           string                  `yaml:"grace"`
	BackupRetention string                  `yaml:"backup_retention"`
	AuditRetention  string                  `yaml:"audit_retention"`
	MinFreeBytes    string                  `yaml:"min_free_bytes"`
	MinFreeInodes   *int64                  `yaml:"min_free_inodes"`
	ToolLimits      map[string]toolLimits   `yaml:"tool_limits"`
	Tools           adapters.Declarations   `yaml:"tools"`
	Listen          string                  `yaml:"listen"`
	MetricsListen   string                  `yaml:"metrics_listen"`
	Auth            string                  `yaml:"auth"`
	Tokens          string                  `yaml:"tokens"`
	AllowedHosts    []string                `yaml:"allowed_hosts"`
	AllowedOrigins  []string                `yaml:"allowed_origins"`
	TLSCert         string                  `yaml:"tls_cert"`
	TLSKey          string                  `yaml:"tls_key"`
	TLSUpstream     bool                    `yaml:"tls_terminated_upstream"`
	RateLimit       *int64                  `yaml:"rate_limit"`
	DrainTimeout    string                  `yaml:"drain_timeout"`
}

// toolLimits replace a tool's own where they are set.
type toolLimits struct {
	Wall    string `yaml:"wall"`
	Memory  string `yaml:"memory"`
	Pids    int64  `yaml:"pids"`
	Staging string `yaml:"staging"`
	Log     string `yaml:"log"`
}

// ConfigKey is one row of docs/config.md.
type ConfigKey struct{ Key, Default, Meaning string }

// ConfigKeys returns the keys of the configuration file, in the order of the documentation.
func ConfigKeys() []ConfigKey {
	return []ConfigKey{
		{"state_dir", "`<workspace>/.eda-sidecar/state`", "directory of the ledger: local file system, absolute path; `--state-dir` wins"},
		{"node", "host name", "name of this machine in the journal; recovery tells a reboot from another machine by it"},
		{"cgroup_parent", "discovered", "absolute cgroup2 directory to make groups in"},
		{"limits", "`best-effort`", "`required`: a tool whose memory or process limit cannot be set does not run"},
		{"path", "`/usr/local/bin:/usr/bin:/bin`", "PATH of tools; absolute directories"},
		{"readable", "none", "absolute directories that tools may read beside the system's, such as PDKs"},
		{"allow_script", "`false`", "tools of trust `script` may be called; `run` is not affected"},
		{"env.pass", "none", "names of environment variables that a declared tool gets if it asks for them"},
		{"queue_timeout", "`60s`", "how long a call waits for its session and targets"},
		{"kill_timeout", "`10s`", "how long death may take to be proven"},
		{"grace", "`2s`", "from SIGTERM to the kill of a late or cancelled tool"},
		{"backup_retention", "`10m`", "how long a displaced original is kept"},
		{"audit_retention", "`2160h`", "how long events are kept"},
		{"min_free_bytes", "`64MiB`", "calls are refused below this room on the workspace's volume"},
		{"min_free_inodes", "`128`", "the same for inodes; 0: no minimum"},
		{"tool_limits", "the tool's own", "by tool, instead of its own: `wall` (from 1s; default and ceiling of a call's time), `memory`, `pids`, `staging`, `log`"},
		{"tools", "none", "declared tools; `eda-sidecar tools schema` prints their JSON Schema"},
		{"listen", "`127.0.0.1:8080`", "address and port of a server's MCP endpoint; `--listen` wins. One that is not loopback needs `auth: token`, `allowed_hosts`, and TLS, here or upstream"},
		{"metrics_listen", "`127.0.0.1:9090`", "address and port of a server's metrics and probes; with `--stdio` none unless set; `--metrics-listen` wins"},
		{"auth", "`token`", "`token`: clients of a server need the token in `<state_dir>/token`; `local`: whoever reaches its port may call, so neither in a pod nor with `allow_script`; `--auth` wins"},
		{"tokens", "none", "absolute path of a list of tokens instead of that one, outside of the workspace: [server.md](server.md#tokens)"},
		{"allowed_hosts", "the loopback names", "values of the Host header that are answered, such as `eda.example.com` or `eda.example.com:8443`"},
		{"allowed_origins", "allowed loopback hosts", "values of the Origin header that are answered, such as `https://eda.example.com`"},
		{"tls_cert", "none", "absolute path of the certificate chain of MCP, PEM, with `tls_key`; read once; `--tls-cert` wins"},
		{"tls_key", "none", "absolute path of its key, where no tool can read; `--tls-key` wins"},
		{"tls_terminated_upstream", "`false`", "`true`: a proxy in front speaks TLS, and nobody else reaches the port"},
		{"rate_limit", "`100`", "requests a second of one principal, over HTTP; three times as many at once"},
		{"drain_timeout", "`60s`", "how long running jobs may go on once a server drains, before they are cancelled"},
	}
}

// inPod begins the environment of every container of a pod: Kubernetes, "Service environment variables".
const inPod = "KUBERNETES_SERVICE_HOST="

const maxConfig = 1 << 20 // bytes of a configuration file

// plainPath are the ASCII bytes that every tool can be told in a path.
const plainPath = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+@=,"

// LoadConfig reads and validates flags and file. It returns every mistake, each with the path of its key.
func LoadConfig(flags Flags) (Config, error) {
	var f file
	var errs []error
	var text []byte
	if flags.Config != "" {
		var err error
		if text, err = readFile(flags.Config); err != nil {
			return Config{}, err
		}
		var types *yaml.TypeError
		if more := yaml.NewDecoder(bytes.NewReader(text)); more.Decode(new(any)) == nil && !errors.Is(more.Decode(new(any)), io.EOF) {
			return Config{}, fmt.Errorf("config %q: want one YAML document", flags.Config)
		}
		if err := yaml.UnmarshalStrict(text, &f); errors.As(err, &types) { // the rest is read all the same
			for _, mistake := range types.Errors {
				errs = append(errs, fmt.Errorf("config %q: %s", flags.Config, inWords(text, mistake)))
			}
		} else if err != nil {
			return Config{}, fmt.Errorf("config %q: %w", flags.Config, err)
		}
	}
	v := &validator{errs: &errs}
	c := Config{
		Node: f.Node, CgroupParent: f.CgroupParent, LimitsRequired: v.oneOf("limits", f.Limits, "best-effort", "required") == "required",
		Path: "/usr/local/bin:/usr/bin:/bin", Readable: f.Readable, AllowScript: f.AllowScript,
		QueueTimeout: v.duration("queue_timeout", f.QueueTimeout, time.Minute), KillTimeout: v.duration("kill_timeout", f.KillTimeout, 10*time.Second),
		Grace: v.duration("grace", f.Grace, 2*time.Second), BackupRetention: v.duration("backup_retention", f.BackupRetention, 10*time.Minute),
		AuditRetention: v.duration("audit_retention", f.AuditRetention, 90*24*time.Hour),
		MinFreeBytes:   v.size("min_free_bytes", f.MinFreeBytes, 64<<20), MinFreeInodes: 128, ToolLimits: map[string]adapters.Limits{},
	}
	if f.Path != "" {
		c.Path = f.Path
	}
	for i, dir := range filepath.SplitList(c.Path) {
		v.absolute(fmt.Sprintf("path[%d]", i), dir)
	}
	for i, dir := range c.Readable {
		v.absolute(fmt.Sprintf("readable[%d]", i), dir)
	}
	for i, name := range f.Env.Pass {
		if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name) || strings.HasPrefix(name, "LD_") {
			v.bad(fmt.Sprintf("env.pass[%d]", i), "%q cannot be passed to a tool", name)
		}
		for _, pair := range flags.Environ {
			if strings.HasPrefix(pair, name+"=") {
				c.PassEnv = append(c.PassEnv, pair)
			}
		}
	}
	if f.CgroupParent != "" {
		v.absolute("cgroup_parent", f.CgroupParent)
	}
	if f.MinFreeInodes != nil {
		if c.MinFreeInodes = *f.MinFreeInodes; c.MinFreeInodes < 0 {
			v.bad("min_free_inodes", "%d is below zero", c.MinFreeInodes)
		}
	}
	c.DrainTimeout = v.duration("drain_timeout", f.DrainTimeout, time.Minute)
	c.Listen = v.address("listen", cmp.Or(flags.Listen, f.Listen, "127.0.0.1:8080"))
	c.MetricsListen = v.address("metrics_listen", cmp.Or(flags.MetricsListen, f.MetricsListen))
	if c.Listen == c.MetricsListen && !strings.HasSuffix(c.Listen, ":0") {
		v.bad("metrics_listen", "%q is the address of MCP, too", c.Listen)
	}
	v.places(&c, flags, f.StateDir)
	v.front(&c, flags, f)
	v.catalog(&c, f.Tools, f.ToolLimits)
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfig {
		return nil, fmt.Errorf("config %q: want a regular file of at most %d bytes", path, maxConfig)
	}
	return os.ReadFile(path)
}

// What the YAML decoder says of a mistake.
var (
	mistakeAt  = regexp.MustCompile(`^line (\d+): (.*)$`)
	noField    = regexp.MustCompile(`^field (\S+) not found in type `)
	fieldTwice = regexp.MustCompile(`^(?:field|key) (\S+) already set in `)
	wrongType  = regexp.MustCompile("^cannot unmarshal !!([a-z]+)(?: (`.*`))? into (.*)$")
	keyOfLine  = regexp.MustCompile(`^[\s-]*"?(\w+)"?\s*:`)
)

// inWords says such a mistake without the names of our types, and with the key that the line, or one above, begins with.
func inWords(text []byte, mistake string) string {
	at := mistakeAt.FindStringSubmatch(mistake)
	if at == nil {
		return mistake
	}
	where := "line " + at[1] + ": "
	if m := noField.FindStringSubmatch(at[2]); m != nil {
		return where + "there is no key " + m[1]
	}
	if m := fieldTwice.FindStringSubmatch(at[2]); m != nil {
		return where + "key " + m[1] + " is given twice"
	}
	m := wrongType.FindStringSubmatch(at[2])
	if m == nil {
		return mistake
	}
	n, _ := strconv.Atoi(at[1]) // digits; a number that is too large is the last line
	lines := strings.Split(string(text), "\n")
	for n = min(n, len(lines)); n > 0; n-- {
		if key := keyOfLine.FindStringSubmatch(lines[n-1]); key != nil {
			where += key[1] + ": "
			break
		}
	}
	kinds := map[string]string{"seq": "a list", "map": "keys with values", "str": "text", "int": "a number", "float": "a number", "bool": "true or false"}
	return where + "want " + wanted(m[3]) + ", got " + strings.TrimSpace(cmp.Or(kinds[m[1]], m[1])+" "+m[2])
}

// wanted says in words what a field of this type takes.
func wanted(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"), goType == "adapters.Declarations":
		return "a list"
	case strings.HasPrefix(goType, "int"):
		return "a whole number"
	}
	words := map[string]string{
		"string": "text", "adapters.Trust": "text", "adapters.Kind": "text", "adapters.ParamKind": "text", "bool": "true or false", "float64": "a number", "time.Duration": "a duration, such as 10m",
	}
	return cmp.Or(words[goType], "keys with values")
}

// validator gathers mistakes, each with the path of its key.
type validator struct{ errs *[]error }

func (v *validator) bad(key, format string, args ...any) {
	*v.errs = append(*v.errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
}

func (v *validator) oneOf(key, got string, allowed ...string) string {
	if got == "" {
		return allowed[0]
	}
	if !slices.Contains(allowed, got) {
		v.bad(key, "%q is not one of %s", got, strings.Join(allowed, ", "))
	}
	return got
}

func (v *validator) duration(key, text string, def time.Duration) time.Duration {
	if text == "" {
		return def
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		v.bad(key, "%q is no duration above zero, such as 90s or 10m", text)
	}
	return d
}

func (v *validator) size(key, text string, def int64) int64 {
	if text == "" {
		return def
	}
	n, err := adapters.ParseSize(text)
	if err != nil || n <= 0 {
		v.bad(key, "%q is no size above zero, such as 64MiB or 4GiB", text)
	}
	return n
}

func (v *validator) absolute(key, path string) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		v.bad(key, "%q is not an absolute, clean path", path)
	}
}

// address checks host:port.
func (v *validator) address(key, address string) string {
	if address == "" {
		return ""
	}
	_, port, err := net.SplitHostPort(address)
	if n, portErr := strconv.ParseUint(port, 10, 16); err == nil && (portErr != nil || n == 0 && port != "0") {
		err = fmt.Errorf("port %q", port)
	}
	if err != nil {
		v.bad(key, "%q is not host:port, such as 127.0.0.1:8080 (%v)", address, err)
	}
	return address
}

// loopback reports whether only this machine reaches host:port.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err != nil || host == "localhost" || net.ParseIP(host).IsLoopback() // what is no address is said elsewhere
}

// front decides who is served, and how. What would be open to more than those is refused.
func (v *validator) front(c *Config, flags Flags, f file) {
	c.Auth = v.oneOf("auth", cmp.Or(flags.Auth, f.Auth), "token", "local")
	c.AllowedHosts, c.AllowedOrigins, c.RateLimit = f.AllowedHosts, f.AllowedOrigins, 100
	c.TLSCert, c.TLSKey = v.secret("tls_cert", flags.TLSCert, f.TLSCert, ""), v.secret("tls_key", flags.TLSKey, f.TLSKey, c.Workspace)
	c.Tokens = v.secret("tokens", "", f.Tokens, c.Workspace)
	local, open := c.Auth == "local", !loopback(c.Listen)
	pod := slices.ContainsFunc(flags.Environ, func(pair string) bool { return strings.HasPrefix(pair, inPod) })
	for _, r := range []struct {
		refused  bool
		key, why string
	}{
		{local && c.AllowScript, "auth", "local with allow_script: whoever reaches the port could hand over code"},
		{local && pod, "auth", "local in a pod, where every container, and so every tool, reaches the port"},
		{local && open, "auth", "local with a listen that is not loopback: whoever reaches the port could call"},
		{local && c.Tokens != "", "auth", "local with tokens, which nobody would be asked for"},
		{open && c.TLSCert == "" && !f.TLSUpstream, "listen", "not a loopback address, and neither tls_cert and tls_key nor tls_terminated_upstream: calls and tokens would cross the network in the clear"},
		{open && len(c.AllowedHosts) == 0, "allowed_hosts", "listen is not a loopback address: name the hosts by which clients call it"},
		{c.TLSCert == "" && c.TLSKey != "", "tls_cert", "tls_key needs it"},
		{c.TLSCert != "" && c.TLSKey == "", "tls_key", "tls_cert needs it"},
	} {
		if r.refused {
			v.bad(r.key, "%s", r.why)
		}
	}
	for i, host := range c.AllowedHosts {
		if u, err := url.Parse("http://" + host); err != nil || u.Host != host || u.Hostname() == "" {
			v.bad(fmt.Sprintf("allowed_hosts[%d]", i), "%q is not a host, such as eda.example.com or eda.example.com:8443", host)
		}
	}
	for i, origin := range c.AllowedOrigins {
		if u, err := url.Parse(origin); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Scheme+"://"+u.Host != origin {
			v.bad(fmt.Sprintf("allowed_origins[%d]", i), "%q is not an origin, such as https://eda.example.com", origin)
		}
	}
	if f.RateLimit != nil {
		if c.RateLimit = *f.RateLimit; c.RateLimit < 1 {
			v.bad("rate_limit", "%d is below one", c.RateLimit)
		}
	}
}

// secret is the absolute path of a file, by a flag or by the file; not in the workspace, where calls write and tools read.
func (v *validator) secret(key, flag, path, workspace string) string {
	if flag != "" {
		abs, err := filepath.Abs(flag)
		if err != nil {
			v.bad(key, "%v", err)
		}
		path = abs
	} else if path != "" {
		v.absolute(key, path)
	}
	if path != "" && workspace != "" && within(resolve(path), workspace) {
		v.bad(key, "%q lies in the workspace, where calls write and tools read: name a place outside", path)
	}
	return path
}

// places decides workspace and state directory. The workspace must be there; the state directory is made.
func (v *validator) places(c *Config, flags Flags, stateDir string) {
	if flags.Workspace == "" {
		v.bad("workspace", "the name is empty")
		return
	}
	workspace, err := filepath.Abs(flags.Workspace)
	if err == nil {
		workspace, err = filepath.EvalSymlinks(workspace)
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Stat(workspace)
	}
	switch {
	case err != nil:
		v.bad("workspace", "%v", err)
		return
	case !info.IsDir():
		v.bad("workspace", "%q is not a directory", workspace)
		return
	case workspace == "/":
		v.bad("workspace", "the root directory cannot be a workspace")
		return
	}
	if i := strings.IndexFunc(workspace, func(r rune) bool { return r < 0x80 && !strings.ContainsRune(plainPath, r) }); i >= 0 {
		v.bad("workspace", "%q holds %q, which make, Yosys and others cannot be told in a path: use a directory without it (a bind mount will do)", workspace, workspace[i])
		return
	}
	if side, err := os.Lstat(filepath.Join(workspace, ".eda-sidecar")); err == nil && !side.IsDir() {
		what := "a file"
		if side.Mode()&os.ModeSymlink != 0 {
			what = "a symbolic link"
		}
		v.bad("workspace", "%q holds %s named .eda-sidecar, where the engine keeps a directory: put that back, or, if there was none, move this away", workspace, what)
		return
	}
	if above := workspaceAbove(workspace); above != "" {
		v.bad("workspace", "%q lies in the workspace %q, whose tools could read its ledger: name a directory outside", workspace, above)
	}
	c.Workspace = workspace
	c.StateDir = filepath.Join(workspace, ".eda-sidecar", "state")
	if stateDir != "" {
		v.absolute("state_dir", stateDir)
		c.StateDir = stateDir
	}
	if flags.StateDir != "" {
		if c.StateDir, err = filepath.Abs(flags.StateDir); err != nil {
			v.bad("state-dir", "%v", err)
		}
	}
	if !filepath.IsAbs(c.StateDir) {
		return // said above
	}
	c.StateDir = resolve(c.StateDir)
	if above := workspaceAbove(c.StateDir); within(c.StateDir, workspace) && c.StateDir != filepath.Join(workspace, ".eda-sidecar", "state") {
		v.bad("state_dir", "%q lies in the workspace, where tools can read: leave it out, or name a place outside", c.StateDir)
	} else if above != "" && above != workspace {
		v.bad("state_dir", "%q lies in the workspace %q, whose tools could read it: name a place outside", c.StateDir, above)
	}
	if within(workspace, c.StateDir) {
		v.bad("state_dir", "%q holds the workspace, which tools could not read then: name a place beside it", c.StateDir)
	}
	for i, dir := range c.Readable {
		if !filepath.IsAbs(dir) {
			continue // said above
		}
		key := fmt.Sprintf("readable[%d]", i)
		if dir = resolve(dir); within(c.StateDir, dir) || within(dir, c.StateDir) {
			v.bad(key, "%q would open the state directory to tools", dir)
		}
		if h, err := durable.OS().OpenRoot("sidecar.config.readable", dir); err == nil { // what is missing is skipped
			in, err := durable.OnCgroupfs(durable.OS(), h)
			if err = errors.Join(err, h.Close()); err != nil || in {
				v.bad(key, "%q is on cgroupfs, which is the engine's alone", dir)
			}
		}
	}
}

// resolve follows the links of that part of an absolute path that exists.
func resolve(p string) string {
	for dir, rest := p, ""; dir != "/"; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
	}
	return p
}

// workspaceAbove returns the nearest workspace that holds the directory p, or the empty string.
func workspaceAbove(p string) string {
	for above := filepath.Dir(p); above != "/"; above = filepath.Dir(above) {
		if _, err := os.Lstat(filepath.Join(above, ".eda-sidecar", "owner.lock")); err == nil {
			return above
		}
	}
	return ""
}

// within reports whether p is dir or below it.
func within(p, dir string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (v *validator) catalog(c *Config, tools adapters.Declarations, limits map[string]toolLimits) {
	declared, err := tools.Tools()
	if err != nil {
		*v.errs = append(*v.errs, err)
	}
	if c.Catalog, err = adapters.NewCatalog(declared...); err != nil {
		*v.errs = append(*v.errs, err)
		return
	}
	for name, l := range limits {
		key := "tool_limits." + name
		if t, hint := c.Catalog.Tool(name); t == nil && name != "run" {
			v.bad(key, "there is no such tool (%s)", hint)
		}
		if l.Pids < 0 {
			v.bad(key+".pids", "%d is below zero", l.Pids)
		}
		wall := v.duration(key+".wall", l.Wall, 0)
		if wall > 0 && wall < time.Second {
			v.bad(key+".wall", "%q is less than a second, which no call could ask for", l.Wall)
		}
		c.ToolLimits[name] = adapters.Limits{
			Wall: wall, MemoryBytes: v.size(key+".memory", l.Memory, 0), Pids: l.Pids,
			StagingBytes: v.size(key+".staging", l.Staging, 0), LogBytes: v.size(key+".log", l.Log, 0),
		}
	}
}
