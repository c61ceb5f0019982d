// Command bench runs the benchmarks of rows.go, product, floor and peers side by side, and writes docs/benchmarks.md.
//
// Each benchmark runs in a process of its own, for a fixed number of rounds. The exit status is 0 only if every bound holds.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

const document = "docs/benchmarks.md"

func main() {
	only := flag.String("only", "", "run the benchmarks whose name matches this regular expression, and write no document")
	scale := flag.Float64("scale", 1, "times the number of rounds; other than 1 writes no document")
	flag.Parse()
	bad, err := run(*only, *scale)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	if err != nil || bad > 0 {
		os.Exit(1)
	}
}

// run measures, and says how many rows break a bound.
func run(only string, scale float64) (bad int, err error) {
	want, err := regexp.Compile(only)
	if err != nil {
		return 0, err
	}
	load := loadavg()
	all := metrics{}
	for _, b := range benchmarks {
		if want.MatchString(b.name) {
			if err := b.measure(all, max(1, int(float64(b.n)*scale))); err != nil {
				return 0, fmt.Errorf("benchmark %s in %s: %w", b.name, b.dir, err)
			}
		}
	}
	texts := map[string]string{}
	for _, r := range rows {
		name, _, _ := strings.Cut(r.bench, "/")
		if !want.MatchString(name) {
			continue
		}
		line, fails := r.render(all)
		texts[r.table] += line
		if fails {
			bad++
		}
	}
	for _, t := range tables {
		if texts[t] != "" {
			texts[t] = "| benchmark | p10 | p50 or value | p99 | ratio | bound | verdict |\n|---|---|---|---|---|---|---|\n" + texts[t]
			fmt.Println(texts[t])
		}
	}
	fmt.Printf("%d of %d rows miss a bound\n", bad, len(rows))
	if only != "" || scale != 1 {
		return bad, nil
	}
	if texts["host"], err = host(load); err != nil {
		return bad, err
	}
	return bad, write(texts)
}

// measure builds the test program of b's package and runs the benchmark in it.
func (b benchmark) measure(all metrics, n int) error {
	program, err := filepath.Abs(filepath.Join("build", "bench", strings.ReplaceAll(b.dir, "/", "-")+".test"))
	if err != nil {
		return err
	}
	build := exec.Command("go", "test", "-c", "-o", program, "./"+b.dir)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	var out bytes.Buffer
	c := exec.Command(program, "-test.run=^$", "-test.bench=^Benchmark"+b.name+"$", fmt.Sprintf("-test.benchtime=%dx", n), "-test.timeout=5m")
	c.Dir, c.Stdout, c.Stderr = b.dir, io.MultiWriter(&out, os.Stderr), os.Stderr
	if err := c.Run(); err != nil {
		return err
	}
	if all.read(&out) == 0 {
		return fmt.Errorf("it reports nothing")
	}
	return nil
}

// read takes the result lines of a test program: "BenchmarkName-2  rounds  number unit  number unit ...".
func (all metrics) read(r io.Reader) (results int) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		all[name] = map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				all[name][fields[i+1]] = v
			}
		}
		results++
	}
	return results
}

// hostRows are the lines of the table that says where and when.
var hostRows = []string{"host", "kernel", "CPUs", "file system of the workspaces", "load before", "load after", "date", "commit", "Go"}

func host(before string) (string, error) {
	var u unix.Utsname
	var st unix.Statfs_t
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	if err := unix.Statfs(os.TempDir(), &st); err != nil {
		return "", err
	}
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	_, model, _ := strings.Cut(string(cpus), "model name\t: ")
	model, _, _ = strings.Cut(model, "\n")
	commit, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return "", fmt.Errorf("git describe: %w", err)
	}
	volume := fmt.Sprintf("%#x", st.Type)
	if known := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.TMPFS_MAGIC: "tmpfs: the syncs cost nothing"}[st.Type]; known != "" {
		volume = known
	}
	volume += mounted(os.TempDir())
	var text strings.Builder
	text.WriteString("| | |\n|---|---|\n")
	for i, v := range []string{
		unix.ByteSliceToString(u.Nodename[:]), unix.ByteSliceToString(u.Release[:]), fmt.Sprintf("%d x %s", runtime.NumCPU(), model), volume,
		before, loadavg(), time.Now().UTC().Format("2006-01-02 15:04 MST"), strings.TrimSpace(string(commit)), runtime.Version(),
	} {
		fmt.Fprintf(&text, "| %s | %s |\n", hostRows[i], v)
	}
	return text.String(), nil
}

// mounted says of an ext4 what makes its figures another machine's: a sync without a journal costs little, new inodes much
// after many were deleted, and with discard each deletion waits for the device.
func mounted(dir string) (text string) {
	out, err := exec.Command("findmnt", "--noheadings", "--output", "SOURCE,FSTYPE,OPTIONS", "--target", dir).Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) != 3 || fields[1] != "ext4" {
		return "" // it is only told
	}
	if journal, _ := filepath.Glob("/proc/fs/jbd2/" + filepath.Base(fields[0]) + "-*"); len(journal) == 0 { // the pattern is well-formed
		text = ", no journal"
	}
	if strings.Contains(","+fields[2]+",", ",discard,") {
		text += ", discard"
	}
	return text
}

// loadavg is the load of the last 1, 5 and 15 minutes.
func loadavg() string {
	text, _ := os.ReadFile("/proc/loadavg") // it is only told
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// write puts the tables into the document.
func write(texts map[string]string) error {
	page, err := os.ReadFile(document)
	text := string(page)
	for _, t := range append([]string{"host"}, tables...) {
		if err == nil {
			text, err = doctable.Replace(text, t, texts[t])
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", document, err)
	}
	return os.WriteFile(document, []byte(text), 0o644)
}
