// Passes: 100 clocks after reset the LEDs show 25.
`timescale 1ns/1ns
`include "width.vh"
module tb;
  reg clk = 0, rst = 1;
  wire [`WIDTH-1:0] led;
  top dut (.clk(clk), .rst(rst), .led(led));
  always #5 clk = ~clk;
  initial begin
    $dumpfile("dump.vcd");
    $dumpvars(0, tb);
    repeat (2) @(posedge clk);
    #1 rst = 0;
    repeat (100) @(posedge clk);
    #1;
    if (led !== 25) $error("led is %0d, want 25", led);
    else $display("PASS: led is %0d after 100 clocks", led);
    $finish;
  end
endmodule
