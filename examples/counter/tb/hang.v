// Never ends: nobody calls $finish. For the time-out demonstration.
`timescale 1ns/1ns
`include "width.vh"
module hang;
  reg clk = 0, rst = 1;
  wire [`WIDTH-1:0] led;
  top dut (.clk(clk), .rst(rst), .led(led));
  always #5 clk = ~clk;
  initial begin
    #20 rst = 0;
    $display("running, and nothing will stop it");
  end
endmodule
