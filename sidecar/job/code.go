package job

// Code is how a call ended: a closed set, the same in results, audit events and (in lower case) metric labels.
type Code string

// The codes.
const (
	OK                     Code = "OK"
	ToolFailed             Code = "TOOL_FAILED"
	OutputInvalid          Code = "OUTPUT_INVALID"
	OutputLimit            Code = "OUTPUT_LIMIT"
	ToolTimeout            Code = "TOOL_TIMEOUT"
	CodeCancelled          Code = "CANCELLED"
	OutOfMemory            Code = "OUT_OF_MEMORY"
	ProcessLimit           Code = "PROCESS_LIMIT"
	SessionDestroyed       Code = "SESSION_DESTROYED"
	SessionNotFound        Code = "SESSION_NOT_FOUND"
	OutputConflict         Code = "OUTPUT_CONFLICT"
	Busy                   Code = "BUSY"
	Denied                 Code = "DENIED"
	InvalidArgument        Code = "INVALID_ARGUMENT"
	ToolNotInstalled       Code = "TOOL_NOT_INSTALLED"
	WorkspaceFull          Code = "WORKSPACE_FULL"
	PublishFailed          Code = "PUBLISH_FAILED"
	AuditUnavailable       Code = "AUDIT_UNAVAILABLE"
	ContainmentUnavailable Code = "CONTAINMENT_UNAVAILABLE"
	TerminationUnproven    Code = "TERMINATION_UNPROVEN"
	CommitInDoubt          Code = "COMMIT_IN_DOUBT"
	ShuttingDown           Code = "SHUTTING_DOWN"
	Internal               Code = "INTERNAL"
)

// CodeInfo is one row of the table of codes: the contract of docs/protocol.md.
type CodeInfo struct {
	Code    Code
	Meaning string
	Hint    string // what to do next; empty for OK
}

// Codes returns the closed list of codes, in the order of the documentation.
func Codes() []CodeInfo {
	return []CodeInfo{
		{OK, "committed, or read to its end", ""},
		{ToolFailed, "the tool ran and did not do its work", "read diagnostics and log; nothing was changed"},
		{OutputInvalid, "an output is missing, cut short or not of its kind", "read the message and the log; the old outputs are untouched"},
		{OutputLimit, "the tool wrote more than its limit, or printed more where the verdict is counted from what it prints", "raise tool_limits.TOOL.staging or .log in the config, or ask it for less"},
		{ToolTimeout, "the tool's time was over", "raise the timeout (--timeout, timeout_s), or find out why the tool hangs: the end of its log is in the result"},
		{CodeCancelled, "the caller cancelled, or went away", "call again when you want it"},
		{OutOfMemory, "the kernel killed the tool at its memory limit", "raise tool_limits.TOOL.memory in the config, or give it a smaller design"},
		{ProcessLimit, "the tool could not start as many processes as it wanted", "raise tool_limits.TOOL.pids in the config, or ask it for fewer jobs"},
		{SessionDestroyed, "the session was destroyed before the call got its turn", "open a new session"},
		{SessionNotFound, "no such session, or it belongs to somebody else", "list your sessions, or open one"},
		{OutputConflict, "somebody else changed a target during the run", "look at the target: theirs was kept; call again to replace it"},
		{Busy, "too many calls wait for the same session or targets", "call again later"},
		{Denied, "the principal may not do this", "ask the operator for the capability that the message names"},
		{InvalidArgument, "an argument, a path or the configuration is not acceptable", "correct what the message names"},
		{ToolNotInstalled, "the tool's program is missing, too old or not executable", "install it where PATH of the config finds it; 'eda-sidecar doctor' lists what was found"},
		{WorkspaceFull, "no room on the workspace's or the state's volume", "free space there and call again; nothing was changed"},
		{PublishFailed, "the outputs could not be moved to their targets", "'eda-sidecar doctor' checks the volume; nothing was changed if rolled_back is true"},
		{AuditUnavailable, "the ledger cannot record what would be done", "check the volume of --state-dir, then start again"},
		{ContainmentUnavailable, "tools cannot be contained here, so none runs", "'eda-sidecar doctor' says what is missing and how to get it"},
		{TerminationUnproven, "a process of the tool could not be proven dead", "do not touch the job's directory; 'eda-sidecar doctor' names the survivors"},
		{CommitInDoubt, "the durability of the commit record is not known", "start again: recovery decides from what is on disk"},
		{ShuttingDown, "the engine is stopping", "call again after its restart"},
		{Internal, "a fault of eda-sidecar itself", "report it with the job's audit events: 'eda-sidecar audit --job ID'"},
	}
}

// Hint returns what a user can do about c; empty for OK.
func (c Code) Hint() string {
	for _, i := range Codes() {
		if i.Code == c {
			return i.Hint
		}
	}
	return ""
}
