package doctable

import (
	"strings"
	"testing"
)

const page = "# Title\n\n<!-- table:t -->\n\n| a |\n|---|\n| 1 |\n| 2 |\n\n<!-- /table:t -->\nrest\n"

func TestReplace(t *testing.T) {
	const rows = "| a |\n|---|\n| 1 |\n| 2 |\n"
	for _, tt := range []struct {
		name, page, want string
		equal            bool
		err              string
	}{
		{"equal", page, rows, true, ""},
		{"dropped_row", strings.Replace(page, "| 2 |\n", "", 1), rows, false, ""},
		{"added_row", strings.Replace(page, "| 2 |\n", "| 2 |\n| 3 |\n", 1), rows, false, ""},
		{"prose_inside", strings.Replace(page, "| 2 |\n", "| 2 |\n\nand more\n", 1), rows, false, ""},
		{"other_value", page, strings.Replace(rows, "1", "9", 1), false, ""},
		{"no_begin", strings.Replace(page, "<!-- table:t -->", "", 1), rows, false, "no marker"},
		{"no_end", strings.Replace(page, "<!-- /table:t -->", "", 1), rows, false, "no marker"},
		{"other_name", strings.ReplaceAll(page, ":t ", ":u "), rows, false, "no marker"},
		{"twice", page + page, rows, false, "4 markers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Replace(tt.page, "t", tt.want)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("err = %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || (got == tt.page) != tt.equal {
				t.Fatalf("equal = %t, want %t (%v)", got == tt.page, tt.equal, err)
			}
			if again, err := Replace(got, "t", tt.want); err != nil || again != got {
				t.Errorf("a second update changes the page again (%v)", err)
			}
		})
	}
}
