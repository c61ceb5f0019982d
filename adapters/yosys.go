package adapters

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Patterns of text that reaches a driver script or an argument: harmless in each language that it can reach.
const (
	identifier = `[A-Za-z_][A-Za-z0-9_]*`
	define     = identifier + `(=[A-Za-z0-9_'.+-]*)?`
)

// Parameters that several programs share.
func sourcesParam() Param {
	return Param{
		Name: "sources", Kind: Input, List: true, Min: 1, Required: true, Ext: []string{".v", ".sv"},
		Doc: `Verilog sources in the order to read them, relative to the workspace. Example: ["rtl/counter.v", "rtl/top.v"].`,
	}
}

func includeDirsParam() Param {
	return Param{
		Name: "include_dirs", Kind: InputDir, List: true,
		Doc: `Directories searched for included files, in order. Example: ["inc"].`,
	}
}

func definesParam() Param {
	return Param{
		Name: "defines", Kind: Text, List: true, Pattern: define,
		Doc: `Macros, each NAME or NAME=value. Example: ["WIDTH=8", "SYNTHESIS"].`,
	}
}

func topParam() Param {
	return Param{
		Name: "top", Kind: Text, Required: true, Pattern: identifier, MaxLength: 128,
		Doc: "Name of the top module. Example: top.",
	}
}

// synthData is the data of yosys_synth.
type synthData struct {
	Cells       int64            `json:"cells" jsonschema:"cells of the top module with all below it"`
	CellsByType map[string]int64 `json:"cells_by_type" jsonschema:"cells by type"`
	Wires       int64            `json:"wires" jsonschema:"wires"`
	MemoryBits  int64            `json:"memory_bits" jsonschema:"bits in memories that were not mapped"`
	Latches     int64            `json:"latches" jsonschema:"signals for which a latch was inferred"`
	Warnings    int64            `json:"warnings" jsonschema:"warnings of yosys"`
}

const (
	yosysScript = "_run.ys"
	yosysLog    = "_yosys.log"
	yosysStat   = "_stat.json"
)

func yosysProgram() Program {
	return Program{Key: "yosys", Names: []string{"yosys"}, VersionArgs: []string{"-V"}, Match: `(?m)^Yosys (\d+\.\d+)`, Min: "0.23", Tested: "0.23"}
}

func yosysSynth() *Tool {
	return &Tool{
		Name: "yosys_synth", Title: "Synthesise Verilog with Yosys",
		Doc: "Synthesises a Verilog design with Yosys into a netlist for an FPGA family or for generic gates. " +
			"Writes the netlist as JSON, and on request as Verilog and the cell statistics as text. " +
			"Sets the session variable netlist {path, sha256, top, cells}. Findings are warnings of Yosys, such as conflicting drivers.",
		Trust: Declarative, Programs: []Program{yosysProgram()}, State: []string{"netlist"}, Deterministic: true,
		Limits: Limits{Wall: 10 * time.Minute, WallMax: 6 * time.Hour, MemoryBytes: 8 << 30, Pids: 64, StagingBytes: 4 << 30, LogBytes: 64 << 20},
		Data:   dataSchema[synthData](),
		Params: []Param{
			sourcesParam(), includeDirsParam(), topParam(),
			{
				Name: "target", Kind: Enum, Enum: []string{"generic", "ice40", "ecp5", "xilinx", "gowin", "nexus"}, Default: "generic",
				Doc: "What to map to: generic gates, or an FPGA family. Example: ice40.",
			},
			definesParam(),
			{Name: "flatten", Kind: Bool, Default: true, Doc: "Dissolve the hierarchy into the top module. Example: false."},
			{Name: "liberty", Kind: Input, Ext: []string{".lib"}, Doc: "Cell library to map gates and flip-flops to; only with target generic. Example: lib/cells.lib."},
			{Name: "netlist", Kind: Output, Required: true, Format: KindYosysJSON, Holds: "top", Doc: "Target of the netlist, .json. Example: build/top.json."},
			{Name: "verilog", Kind: Output, Format: KindVerilog, Holds: "top", Doc: "Target of the netlist as Verilog, .v. Example: build/top_syn.v."},
			{Name: "stat", Kind: Output, Format: KindText, MustContain: "Number of cells", Doc: "Target of the cell statistics as text. Example: build/top.stat.txt."},
		},
		Plan: planSynth, Progress: yosysProgress, Parse: parseSynth,
	}
}

// planSynth writes one command a line into a script: yosys has no safe quoting, so every word is plain by its parameter's rule.
// Instead of -q, -v 2 also prints the headings that Progress reads (measured: same messages, 10 KB for a small design).
func planSynth(a Args) (Invocation, error) {
	if a.Has("liberty") && a.Text("target") != "generic" {
		return Invocation{}, badArg("liberty", "goes with target generic only")
	}
	var s strings.Builder
	line := func(words ...string) { s.WriteString(strings.Join(words, " ") + "\n") }
	options := slices.Concat(prefixed("-I", a.InputDirs("include_dirs")), prefixed("-D", a.Texts("defines")))
	for _, src := range a.Inputs("sources") {
		words := append([]string{"read_verilog"}, options...)
		if path.Ext(src) == ".sv" {
			words = append(words, "-sv")
		}
		line(append(words, src)...)
	}
	top := a.Text("top")
	line("hierarchy", "-check", "-top", top)
	line(append([]string{synthCommand(a.Text("target")), "-top", top}, flattenOption(a)...)...)
	stat := []string{"stat"}
	if lib := a.Text("liberty"); lib != "" {
		line("dfflibmap", "-liberty", lib)
		line("abc", "-liberty", lib)
		line("clean")
		stat = append(stat, "-liberty", lib)
	}
	line("check")
	line(append([]string{"tee", "-q", "-o", yosysStat}, append(stat, "-json")...)...)
	if slot := a.Staged("stat"); slot != "" {
		line(append([]string{"tee", "-q", "-o", slot}, stat...)...)
	}
	if slot := a.Staged("verilog"); slot != "" {
		line("write_verilog", slot)
	}
	line("write_json", a.Staged("netlist"))
	return Invocation{
		Files: []File{{yosysScript, s.String()}},
		Steps: []Step{{Name: "synth", Argv: []string{"yosys", "-Q", "-T", "-v", "2", "-l", yosysLog, yosysScript}}},
	}, nil
}

// prefixed returns the words with an option in front of each.
func prefixed(option string, words []string) (all []string) {
	for _, w := range words {
		all = append(all, option+w)
	}
	return all
}

func synthCommand(target string) string {
	if target == "generic" {
		return "synth"
	}
	return "synth_" + target
}

// flattenOption: synth and synth_xilinx flatten on request, the others unless told not to (yosys 0.23, help).
func flattenOption(a Args) []string {
	switch target := a.Text("target"); {
	case target == "generic" || target == "xilinx":
		if a.Bool("flatten") {
			return []string{"-flatten"}
		}
	case !a.Bool("flatten"):
		return []string{"-noflatten"}
	}
	return nil
}

// yosysProgress reads numbered headings such as "5.3.2. Executing OPT_EXPR pass (perform const folding).".
func yosysProgress(line []byte) (Progress, bool) {
	text := string(line[:min(len(line), 256)])
	number, rest, ok := strings.Cut(text, ". ")
	if !ok || !strings.HasPrefix(rest, "Executing ") || len(number) == 0 || strings.Trim(number, "0123456789.") != "" {
		return Progress{}, false
	}
	return Progress{Message: strings.TrimSuffix(strings.ToValidUTF8(text, "?"), ".")}, true
}

// yosysMessages collects the messages on yosys' console: an optional file:line[.col[-line.col]]: , then ERROR or Warning, : , text.
// Lines with four blanks in front go on with the message before. Source: yosys kernel/log.cc, measured with 0.23.
func yosysMessages(run Run) (*findings, error) {
	f := &findings{}
	return f, run.eachLine(func(_ int, line []byte) {
		severity := Error
		where, text, ok := bytes.Cut(line, []byte("ERROR: "))
		if !ok {
			severity = Warning
			where, text, ok = bytes.Cut(line, []byte("Warning: "))
		}
		file, at, placed := strings.Cut(strings.TrimSuffix(string(where[:min(len(where), maxMessage)]), ": "), ":")
		switch {
		case ok && len(where) == 0:
			f.add(Diagnostic{Severity: severity, Message: string(text)})
		case ok && placed && !strings.Contains(file, " "):
			from, _, _ := strings.Cut(at, "-")
			row, column, _ := strings.Cut(from, ".")
			f.add(Diagnostic{Severity: severity, File: file, Line: number(row), Column: number(column), Message: string(text)})
		case bytes.HasPrefix(line, []byte("    ")):
			f.more(string(bytes.TrimSpace(line[:min(len(line), maxMessage)])))
		default:
			f.last = nil
		}
	})
}

// number reads digits; none, or too many, is 0: not known.
func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func parseSynth(a Args, run Run, staged fs.FS) Report {
	f, err := yosysMessages(run)
	data, statErr := synthStat(staged)
	data.Warnings = int64(f.counts[Warning])
	var latchErr error
	data.Latches, latchErr = countLatches(staged)
	r := f.report(fmt.Sprintf("%d cells in %s for %s, %d warnings", data.Cells, a.Text("top"), a.Text("target"), data.Warnings), data)
	switch {
	case err != nil:
		r.fail(err.Error())
	case r.Verdict == Failed:
	case statErr != nil || latchErr != nil:
		r.Verdict, r.Summary = Invalid, "statistics: "+errors.Join(statErr, latchErr).Error()
	default:
		r.State, err = netlistState(a, staged, data.Cells)
		if err != nil {
			r.Verdict, r.Summary = Invalid, "netlist: "+err.Error()
		}
	}
	if r.State == nil {
		r.Data = nil
	}
	return r
}

// synthStat reads the statistics of the whole design.
func synthStat(staged fs.FS) (synthData, error) {
	text, err := readSmall(staged, jobPath(yosysStat), 16<<20)
	if err != nil {
		return synthData{}, err
	}
	var doc struct {
		Design *struct {
			Wires       int64            `json:"num_wires"`
			MemoryBits  int64            `json:"num_memory_bits"`
			Cells       int64            `json:"num_cells"`
			CellsByType map[string]int64 `json:"num_cells_by_type"`
		} `json:"design"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return synthData{}, notWhole("%v", err)
	}
	if doc.Design == nil {
		return synthData{}, notWhole("no statistics of the design")
	}
	d := doc.Design
	return synthData{Cells: d.Cells, CellsByType: d.CellsByType, Wires: d.Wires, MemoryBits: d.MemoryBits}, nil
}

// countLatches counts "Latch inferred for signal" in yosys' full log: after mapping a latch may be a loop of cells.
func countLatches(staged fs.FS) (n int64, err error) {
	err = eachFileLine(staged, jobPath(yosysLog), func(line []byte) {
		if bytes.HasPrefix(line, []byte("Latch inferred for signal ")) {
			n++
		}
	})
	return n, err
}

// netlistState is the patch of the session's vars: where the netlist will be, and which one it is.
func netlistState(a Args, staged fs.FS, cells int64) (json.RawMessage, error) {
	f, err := staged.Open(jobPath(a.Staged("netlist")))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, err
	}
	target, _ := a.Output("netlist") // required
	return json.Marshal(map[string]any{"netlist": map[string]any{
		"path": target, "sha256": hex.EncodeToString(sum.Sum(nil)), "top": a.Text("top"), "cells": cells,
	}})
}
